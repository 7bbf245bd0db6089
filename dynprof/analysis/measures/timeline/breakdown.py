"""Where a step's time goes, in words and in shares that add up to it.

Shares are of wall time: what runs on the device during the host's step, whichever step launched
it. If the device is behind the host, the shares are of the device's own time for all steps.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dynprof.analysis.measures.timeline.iteration_labels import DECODE
from dynprof.analysis.measures.timeline.launches import earlier_work
from dynprof.analysis.measures.timeline.overhead import overhead
from dynprof.analysis.measures.timeline.phase_times import (
    CHECKPOINT,
    FORWARD,
    LOADING,
    REST,
    forward_is_guessed,
    mean_phases,
    where_phase,
)
from dynprof.analysis.measures.timeline.steps import (
    MIN_RATIO,
    by_kind,
    host_communication,
    median_of,
)
from dynprof.analysis.reading.events import (
    CALLS,
    COLLECTIONS,
    COPIES,
    KERNELS,
    MEMSETS,
    OPERATORS,
)
from dynprof.analysis.reading.spans import (
    clipped,
    covered,
    covered_until,
    distinct,
    layered,
    united,
    without,
)
from dynprof.runtime.plural import counted, number

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.iteration_labels import Iteration
    from dynprof.analysis.measures.timeline.kernels import Kind
    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.phase_times import Phases
    from dynprof.analysis.measures.timeline.read_trace import Truncation
    from dynprof.analysis.measures.timeline.steps import IterationTime, MarkedStep, Step
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

STEP, ITERATION = "step", "iteration"
COMPUTING, COMMUNICATION, COPYING, IDLE = "computing", "communication", "copying", "idle"
EARLIER = "earlier work"
"""Work from before the recording, while no work of the steps runs."""
COLLECTING, COMPILING = "collecting garbage", "compiling"
RECORDING = "recording"
"""Time that the profiler itself takes."""
COMPILERS = "(dynamo_timed)"
"""Part of the names of events of torch.compile."""
_MIN_SHOWN = 0.005
"""Smallest share of a step that is named in words."""
_MIN_OUTSIDE = 0.1
"""Smallest share of the host outside all phases that is named in words."""
_MIN_APART = 0.05
"""Difference of the mean step from the median, as a share, from which the mean is named too."""
MAX_NAMED = 3
"""Number of outliers that are named one by one."""
_MIN_PROFILER_SHARE = 0.25
"""Smallest share of an outlier's extra time that is named as the profiler's own."""
BEHIND_RATIO = 1.2
"""The device is behind if it ends the steps when this many times the host's time is over."""
_EXPOSED = {
    COMMUNICATION: "communication that nothing hides",
    COPYING: "copying that nothing hides",
    EARLIER: "work from before the recording",
}


class Measured(Protocol):
    """The events of a trace and the measures of its steps that a breakdown needs."""

    @property
    def trace(self) -> Trace:
        """Its events."""

    @property
    def marked(self) -> list[MarkedStep]:
        """Its steps on the host."""

    @property
    def excluded_steps(self) -> Sequence[MarkedStep]:
        """Its steps that are not measured."""

    @property
    def iterations(self) -> Mapping[MarkedStep, Iteration]:
        """What the labels of its iterations say, if its steps are iterations."""

    @property
    def iteration_times(self) -> Mapping[MarkedStep, IterationTime]:
        """The times of its iterations, also of those that are not measured."""

    def took(self, step: MarkedStep) -> int:
        """Return how long a step took."""

    def worked(self, step: MarkedStep) -> int:
        """Return how long a step took without waits for work from before the recording."""

    def recording_ns(self, step: MarkedStep) -> int:
        """Return how long the profiler itself delayed a step."""

    @property
    def steps(self) -> list[Step]:
        """Its steps on each device."""

    @property
    def launches(self) -> Launches:
        """Device activities and the calls of the host that launched them."""

    @property
    def from_before(self) -> NDArray[np.bool_]:
        """Device activities from before the recording, which belong to no step."""

    @property
    def truncation(self) -> Truncation:
        """Where the file is truncated."""

    @property
    def kinds(self) -> list[Kind]:
        """Its kernels by name."""

    @property
    def phases(self) -> list[Phases]:
        """What the host did in each step."""


class Breakdown:
    """The steps of a trace, and their mean; times in ns.

    Args:
        measured: The trace.

    Attributes:
        on_host: Whether no device worked, or its activities are incomplete.
        device: The device described here, the first of several; -1 for the host.
        devices: How many devices worked.
        count: How many steps.
    """

    def __init__(self, measured: Measured) -> None:
        self._measured = measured
        kernels = measured.trace.category(KERNELS)
        worked = distinct(measured.trace.spans["device"][kernels])
        if measured.truncation.devices_incomplete:
            worked = worked[:0]
        self.on_host, self.devices = not len(worked), len(worked)
        self.device = int(worked[0]) if len(worked) else -1
        self.count = len(measured.marked)

    @cached_property
    def steps(self) -> list[MarkedStep]:
        """Number, start and length of the steps; one for all if the device is behind.

        An iteration lasts until the next one begins.
        """
        if self.behind and self._device_span:
            first, last = self._device_span
            return [(None, first, last - first)]
        return self._on_host

    @cached_property
    def _on_host(self) -> list[MarkedStep]:
        """The steps of the host."""
        return self._periods() if self._measured.iterations else self._measured.marked

    @cached_property
    def _device_span(self) -> tuple[int, int] | None:
        """Start and end of the device's work for the marked steps; None if there is none."""
        selected = [s for s in self._measured.steps if s.device == self.device and s.stage]
        begins = [step.begin + step.preparing for step in selected]
        ends = [begin + step.stage for begin, step in zip(begins, selected, strict=True)]
        return (min(begins), max(ends)) if selected else None

    @cached_property
    def behind(self) -> bool:
        """Whether the device works long after the host has finished its steps."""
        if self.on_host or self._measured.excluded_steps or self._device_span is None:
            return False
        first, last = self._device_span
        on_host = sum(length for _, _, length in self._on_host) - self._waited
        ended = max(begin + length for _, begin, length in self._on_host)
        return is_behind(last - first, last - ended, on_host)

    @property
    def _waited(self) -> int:
        """How long iterations on the host waited for work from before the recording."""
        return sum(one.waited for one in self._measured.iteration_times.values())

    @cached_property
    def earlier(self) -> Cover:
        """When the device ran only work from before the recording, in the trace or not."""
        unseen = earlier_work(self._measured.trace, self._measured.launches, self.device)
        found = united(self._recorded_earlier, unseen)
        if not len(found[0]):
            return found
        own = united(*self._own_work.values())
        return without(found, clipped(own, int(found[0][0]), int(found[1][-1])))

    @cached_property
    def _recorded_earlier(self) -> Cover:
        """When the device ran work from before the recording that is in the trace."""
        trace = self._measured.trace
        selected = trace.spans["device"] == self.device
        return trace.when(self._measured.from_before & selected)

    @property
    def _is_earlier_apart(self) -> bool:
        """Whether work from before the recording is no part of a step."""
        return self.behind or bool(self._measured.iterations)

    def _periods(self) -> list[MarkedStep]:
        """Return its iterations, each until the next one begins.

        The last one is as long as the median, but ends with its work at the latest.
        """
        begins = np.array([begin for _, begin, _ in self._measured.iterations], np.int64)
        lengths = np.diff(begins)
        usual = float(np.median(lengths)) if len(lengths) else 0.0
        last_ones = [step for step in self._measured.steps if step.begin == begins[-1]]
        until = max((one.preparing + one.stage for one in last_ones), default=0)
        marked = self._measured.marked
        place = np.searchsorted(begins, [begin for _, begin, _ in marked], side="right") - 1
        periods = np.append(lengths, min(round(usual), until))[place].tolist()
        last = begins[-1]
        return [
            (which, begin, max(length, period) if begin == last else period)
            for (which, begin, length), period in zip(marked, periods, strict=True)
        ]

    @property
    def marked(self) -> bool:
        """Whether the trace marks its steps."""
        return any(number is not None for number, _, _ in self._measured.marked)

    @property
    def _has_python_calls(self) -> bool:
        """Whether Python calls were recorded instead of operators."""
        return bool(self._measured.trace.category(CALLS).any())

    @property
    def a_step(self) -> str:
        """What the times refer to, in words."""
        if self._measured.excluded_steps and self.count == 1:
            return f"{self.noun} {self.steps[0][0]}"
        if self._measured.iterations:
            return f"an {ITERATION}"
        return f"a {STEP}" if self.marked else "the trace"

    @property
    def noun(self) -> str:
        """What its steps are called: ``step``, or ``iteration`` of an inference server."""
        return ITERATION if self._measured.iterations else STEP

    @cached_property
    def length(self) -> float:
        """Duration of the mean step; of iterations, without work from before the recording."""
        apart = self.time_in(self.earlier) if self._is_earlier_apart and not self.on_host else 0
        return sum(length for _, _, length in self.steps) / max(1, self.count) - apart

    @cached_property
    def covers(self) -> dict[str, Cover]:
        """When the device computes, communicates and copies; on the host, the first two.

        Also when it runs only work from before the recording, if it does.
        """
        found = dict(self._own_work)
        if not self.on_host and self.time_in(self.earlier):
            found[EARLIER] = self.earlier
        return found

    @cached_property
    def _own_work(self) -> dict[str, Cover]:
        """When its own work runs, by kind."""
        trace = self._measured.trace
        if self.on_host:
            work = {COMPUTING: trace.category(OPERATORS, CALLS),
                    COMMUNICATION: host_communication(trace)}  # fmt: skip
        else:
            selected = (trace.spans["device"] == self.device) & ~self._measured.from_before
            alone = selected & ~trace.communication
            work = {COMPUTING: trace.category(KERNELS) & alone,
                    COMMUNICATION: trace.communication & selected,
                    COPYING: trace.category(COPIES, MEMSETS) & alone}  # fmt: skip
        return {name: trace.when(chosen) for name, chosen in work.items()}

    def parts_of(self, steps: Sequence[MarkedStep]) -> dict[str, NDArray[np.int64]]:
        """Return the parts of the time of steps. What computing hides counts as computing.

        On the host the profiler itself is a part, if it worked while nothing else ran. Of a device
        it is a cause of idle time.
        """
        begin, length = (np.array([step[at] for step in steps], np.int64) for at in (1, 2))
        covers = {**self.covers, RECORDING: self.recording} if self._is_own_work else self.covers
        found = layered(covers, begin, begin + length)
        parts = {**found, IDLE: length - sum(found.values())}
        if self._is_earlier_apart:
            parts.pop(EARLIER, None)
        return parts

    @cached_property
    def _is_own_work(self) -> bool:
        """Whether the profiler itself worked on the host while nothing else ran."""
        return self.on_host and self.idle_in(self.recording) > 0

    @cached_property
    def parts(self) -> dict[str, float]:
        """The parts of the mean step."""
        found = self.parts_of(self.steps)
        return {name: int(times.sum()) / max(1, self.count) for name, times in found.items()}

    @cached_property
    def phases(self) -> dict[str, float]:
        """The phases of the host in the mean step."""
        return mean_phases(self._measured.phases)

    @cached_property
    def busy(self) -> Cover:
        """When anything of :attr:`covers` runs."""
        return united(*self.covers.values())

    @cached_property
    def recording(self) -> Cover:
        """When the profiler itself works on a thread that marks steps, as its frames tell."""
        return self._measured.trace.when(overhead(self._measured.trace))

    @cached_property
    def causes(self) -> dict[str, Cover]:
        """When the host does something that everything else waits for."""
        trace = self._measured.trace
        return {
            LOADING: where_phase(trace, LOADING),
            CHECKPOINT: where_phase(trace, CHECKPOINT),
            COLLECTING: trace.when(trace.category(COLLECTIONS)),
            RECORDING: self.recording,
            COMPILING: trace.when(trace.named(lambda name: COMPILERS in name)),
        }

    def time_in(self, where: Cover) -> float:
        """Return how long a cover lasts in the mean step."""
        begins = np.array([begin for _, begin, _ in self.steps], np.int64)
        ends = begins + np.array([length for *_, length in self.steps], np.int64)
        inside = covered_until(where, ends) - covered_until(where, begins)
        return float(inside.sum()) / max(1, self.count)

    def idle_in(self, where: Cover) -> float:
        """Return how long nothing runs in the mean step during a cover."""
        return self.time_in(united(self.busy, where)) - self.time_in(self.busy)

    def share(self, time: float) -> float:
        """Return a time as a share of a step, from 0 to 1."""
        return max(0.0, min(1.0, time / self.length)) if self.length > 0 else 0.0

    def __str__(self) -> str:
        return " ".join(self.sentences())

    def sentences(self) -> list[str]:
        """Return how long a step takes, what works in it, and the phases of the host."""
        if not self.length:
            return ["The trace holds no event with a duration."]
        if self._measured.truncation.incomplete:
            return [self._span()]
        without_work = self.on_host and not self._measured.kinds
        work = "No operator was recorded." if without_work else self._work()
        if self._measured.truncation.device_unknown:
            work = "A device worked, and the trace does not tell what it did."
        return [self._span(), work, *self._between(), *self.earlier_sentence(), *self._phases()]

    def _span(self) -> str:
        lengths = sorted(length for _, _, length in self._measured.marked)
        if not self.marked:
            known = "complete" if self._measured.truncation.host_incomplete else "marked"
            rest = "" if self._measured.trace.complete else "the readable part of "
            return f"No step is {known}; {rest}the trace spans {ms(lengths[0])}."
        host = ms((sum(lengths) - self._waited) / len(lengths))
        if self._measured.iterations:
            ahead = f"the host finishes one in {host} and is far ahead" if self.behind else ""
            outliers = self._outliers() if self._measured.excluded_steps else ""
            return "; ".join(filter(None, (self._by_kind(), outliers, ahead))) + "."
        if self.behind:
            return (
                f"A step takes {ms(self.length)} on the device ({counted(len(lengths), 'step')}); "
                f"the host finishes a step in {host} and is far ahead."
            )
        if len(lengths) == 1:
            return f"The step takes {host}."
        every = [*self._measured.marked, *self._measured.excluded_steps]
        in_order = [length for *_, length in sorted(every, key=lambda step: step[1])]
        lengths = sorted(in_order)
        if self._are_two_apart:
            first, second = map(ms, in_order)
            return f"The two steps take {first} and {second}; shares are of both."
        median = median_of(lengths)
        text = f"A step takes {ms(median)} (median of {counted(len(lengths), 'step')}"
        shortest, longest = ms(lengths[0]), ms(lengths[-1])
        if self._measured.excluded_steps:
            return f"{text}); {self._outliers()}."
        between = f", from {shortest} to {longest}" if shortest != longest else ""
        mean = f"; shares are of the mean, {ms(self.length)}" if self._is_mean_apart else ""
        return f"{text}{between}{mean})."

    @property
    def _are_two_apart(self) -> bool:
        """Whether two steps differ by so much that neither is the usual one."""
        every = [*self._measured.marked, *self._measured.excluded_steps]
        lengths = sorted(length for *_, length in every)
        return len(lengths) == 2 and lengths[1] >= MIN_RATIO * lengths[0]

    @property
    def _is_mean_apart(self) -> bool:
        """Whether the mean step is not as long as the median."""
        median = median_of([length for *_, length in self._measured.marked])
        return abs(self.length - median) > _MIN_APART * median

    @property
    def shares_of(self) -> str:
        """What :meth:`share` refers to, in the words of the verdict, which has its length."""
        if self._measured.excluded_steps and self.count > 1:
            return f"the other {counted(self.count, self.noun)}"
        if self.behind or self._measured.iterations or self.count < 2:
            return self.a_step
        if self._are_two_apart:
            return f"both {STEP}s"
        return f"the mean {STEP}" if self._is_mean_apart else self.a_step

    def _outliers(self) -> str:
        """Return how long the excluded steps took. The longest are named by number."""
        excluded, noun = self._measured.excluded_steps, self.noun
        of = " of its kind" if self._measured.iterations else ""
        took = {step: self._measured.took(step) for step in excluded}
        ratios = {step: took[step] / self._usual_length(step) for step in excluded}
        shown = {step: number(ratio) for step, ratio in ratios.items()}
        ordered = sorted(excluded, key=lambda step: -took[step])
        clauses = [
            f"{noun} {step[0]} took {ms(took[step])}, {shown[step]} times the median{of}"
            f"{self._profiler_time(step)}{self._wait_for_earlier(step)}"
            for step in ordered[:MAX_NAMED]
        ]
        if rest := ordered[MAX_NAMED:]:
            more = counted(len(rest), f"more {noun} took", f"more {noun}s took")
            least = number(min(ratios[step] for step in rest))
            clauses.append(f"{more} {least} times the median{of} or more")
        return "; ".join(clauses)

    def _usual_length(self, step: MarkedStep) -> float:
        """Return the median time of all steps; of iterations, of those of a step's kind."""
        kinds, steps = self._measured.iterations, self._measured.marked
        every = [*steps, *self._measured.excluded_steps]
        if step in kinds:
            every = [one for one in every if kinds[one].kind == kinds[step].kind]
        return median_of([self._measured.took(one) for one in every])

    def _by_kind(self) -> str:
        """Return how long the iterations of each kind take, the most frequent kind first."""
        clauses: list[str] = []
        for kind, found in by_kind(self._measured.iteration_times.values()).items():
            noun = f"{kind} {ITERATION}"
            verb, median = ("take", " (median)") if len(found) > 1 else ("takes", "")
            said = f"{counted(len(found), noun)}{_size_of([one.label for one in found])}"
            time = ms(median_of([one.time for one in found]))
            clauses.append(f"{said} {time}" if clauses else f"{said} {verb} {time}{median}")
        return ", ".join(clauses)

    def _between(self) -> list[str]:
        """Return how often an iteration begins, if that is much later than one before it ends."""
        found = list(self._measured.iteration_times.values())
        if len(found) < 2 or self.behind:
            return []
        begins = np.array([one.begin for one in found], np.int64)
        period = median_of(np.diff(begins).tolist())
        if period < (1 + _MIN_OUTSIDE) * median_of([one.time for one in found]):
            return []
        return [f"An {ITERATION} begins every {ms(period)} (median)."]

    def earlier_sentence(self) -> list[str]:
        """Return how long the device ran work from before the recording, if that is not counted.

        Work that is not in the trace takes the time in which nothing else ran, at most.
        """
        if not self._is_earlier_apart or self._device_span is None:
            return []
        begin, end = min(begin for _, begin, _ in self._measured.marked), self._device_span[1]
        time, recorded = (
            covered(clipped(one, begin, end)) for one in (self.earlier, self._recorded_earlier)
        )
        if time < _MIN_OUTSIDE * self.length:
            return []
        most = "" if recorded >= time else "at most "
        text = f"Work from before the recording, {most}{ms(time)} on the device,"
        text += f" counts in no {self.noun}."
        waits = self._waited >= _MIN_OUTSIDE * time
        return [text, *([f"The host waits {ms(self._waited)} for it."] if waits else [])]

    def _profiler_time(self, step: MarkedStep) -> str:
        """Return the profiler's own time in a long step, if it is a large part of the extra."""
        own = self._measured.recording_ns(step)
        is_much = own >= _MIN_PROFILER_SHARE * (
            self._measured.took(step) - self._usual_length(step)
        )
        return f", {ms(own)} of it in the profiler itself" if is_much else ""

    def _wait_for_earlier(self, step: MarkedStep) -> str:
        """Return how long a long step waits for work from before the recording, if that is long."""
        waited = self._measured.took(step) - self._measured.worked(step)
        if waited < _MIN_PROFILER_SHARE * (self._measured.took(step) - self._usual_length(step)):
            return ""
        return f", {ms(waited)} of it waiting for work from before the recording"

    def _work(self) -> str:
        device = f"Device {self.device} (of {self.devices})" if self.devices > 1 else "The device"
        subject = "CPU operators run" if self.on_host else f"{device} computes"
        if self.on_host and self._has_python_calls:
            subject = "Python functions run or wait"
        others = len(self._measured.excluded_steps)
        it = "the time" if self._measured.iterations else "it"
        whole = f"the other {counted(self.count, self.noun)}" if others else it
        text = f"{subject} for {self.share(self.parts[COMPUTING]):.0%} of {whole}"
        for name, words in _EXPOSED.items():
            if self.share(self.parts.get(name, 0)) >= _MIN_SHOWN:
                text += f", {self.share(self.parts[name]):.0%} is {words}"
        idle, own = (self.share(self.parts.get(name, 0)) for name in (IDLE, RECORDING))
        recording = f"; {own:.0%} is the profiler itself" if own >= _MIN_SHOWN else ""
        if self.on_host and self._has_python_calls:
            return f"{text}, and {idle:.0%} is outside recorded calls{recording}."
        if self.on_host:
            return f"{text}, and {idle:.0%} is Python or waiting{recording}."
        return f"{text}, and it is idle for {idle:.0%}."

    def _phases(self) -> list[str]:
        times = sum(self.phases.values()) or 1
        shares = sorted(((name, t / times) for name, t in self.phases.items()), key=lambda p: -p[1])
        named = [
            f"{name} {share:.0%}" for name, share in shares if name != REST and share >= _MIN_SHOWN
        ]
        if not named:
            return []
        if forward_is_guessed(self._measured.trace):
            guess = "guessed from operators"
            named = [f"{one} ({guess})" if one.startswith(FORWARD) else one for one in named]
        rest = self.phases[REST] / times
        outside = f"; {rest:.0%} is outside these" if rest >= _MIN_OUTSIDE else ""
        return [f"On the host: {', '.join(named)}{outside}."]


def is_behind(on_device: int, late: int, on_host: int) -> bool:
    """Return whether a device works long after the host has finished its steps.

    Args:
        on_device: The time from start to end of the device's work for the steps.
        late: How long after the host's last step that ends.
        on_host: How long the host needed for the steps.
    """
    return on_device > on_host and late > (BEHIND_RATIO - 1) * on_host


def _size_of(labels: list[Iteration]) -> str:
    """Return how large iterations of one kind are: requests if they decode, else tokens."""
    requests, tokens = ([getattr(one, name) for one in labels] for name in ("requests", "tokens"))
    by_requests = labels[0].kind == DECODE or None in tokens
    sizes, noun = (requests, "request") if by_requests else (tokens, "token")
    if None in sizes:
        return ""
    least, most = min(sizes), max(sizes)
    return f" of {counted(most, noun)}" if least == most else f" of {least:,} to {most:,} {noun}s"


def ms(nanoseconds: float) -> str:
    """Return a time in ms, with three significant digits."""
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"

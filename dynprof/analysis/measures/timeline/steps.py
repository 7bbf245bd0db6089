"""Where the time of each step goes: computing, communication, and neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynprof.analysis.measures.timeline.iteration_labels import iterations
from dynprof.analysis.measures.timeline.launches import UNKNOWN, in_flight
from dynprof.analysis.measures.timeline.operators import STEP
from dynprof.analysis.measures.timeline.overhead import overhead
from dynprof.analysis.reading.events import (
    CALLS,
    FRAMES,
    KERNELS,
    LABELS,
    ON_DEVICE,
    OPERATORS,
    RECORDINGS,
    STEP_LABELS,
)
from dynprof.analysis.reading.spans import (
    both,
    clipped,
    cover,
    covered,
    distinct,
    inside,
    united,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.iteration_labels import Iteration
    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

MarkedStep = tuple[int | None, int, int]
"""The job's number of a step, or None if steps are not marked; its start and length, in ns."""
HOST = -1
"""The host, in place of a device's number."""
HOST_NAME = "host"
"""The host, in place of a device's number in tables."""
_LONGEST = len(STEP) + 19
"""Length limit of a step's name: more digits may not fit into 64 bits."""
_OF_THE_HOST = ("gloo:", "mpi:", "ucc:")
"""Prefixes of labels of communication on the host."""
MIN_RATIO = 1.5
"""Smallest ratio of an outlier to the median; a smaller one is not worth a line."""
MIN_DEVIATIONS = 3.5 / 0.6745
"""Median absolute deviations by which an outlier must exceed the median.

This is a modified z-score of 3.5: Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993.
"""


@dataclass(frozen=True)
class Step:
    """One step on one device, or on the host if no device worked; times in ns.

    Attributes:
        device: The device's number; -1 for the host.
        number: The job's number of the step; None if steps are not marked.
        begin: When it began, since the trace's base time.
        length: How long it took.
        computing: How long kernels computed; on the host, operators.
        communication: How long collectives ran.
        overlapped: How long both ran at the same time.
        free: How long neither ran, between the first start and the last end of them.
        stage: Time from the first start to the last end of them.
        preparing: Time from the step's start to the first start of them.
        receiving: How long messages from another rank were received or waited for; None
            if the trace does not tell sends from receives.
    """

    device: int
    number: int | None
    begin: int
    length: int
    computing: int
    communication: int
    overlapped: int
    free: int
    stage: int
    preparing: int
    receiving: int | None

    @property
    def device_id(self) -> int | str:
        """The device in tables: its number, or ``host``."""
        return HOST_NAME if self.device == HOST else self.device


class Receives(NamedTuple):
    """Which spans receive a message from another rank.

    Attributes:
        there: Mask of those that do.
        unknown: Mask of those for which the trace does not tell.
    """

    there: NDArray[np.bool_]
    unknown: NDArray[np.bool_]


def marked_steps(trace: Trace, most: int | None = None) -> list[MarkedStep]:
    """Return number, start and length of each marked step in order; else one for everything.

    Iterations of an inference server are steps if none is marked.

    Args:
        trace: The trace.
        most: The number of complete steps, if it is known. If the recording ended during a step,
            the mark of that step covers only a part of it.
    """
    spans, found = trace.spans, []
    names = {
        code: int(name[len(STEP) :])
        for code, name in enumerate(trace.tables["name"])
        if name.startswith(STEP) and name[len(STEP) :].isdecimal() and len(name) < _LONGEST
    }
    marks = np.isin(spans["name"], list(names)) & trace.category(STEP_LABELS)
    for place in np.flatnonzero(marks).tolist():
        number = names[int(spans["name"][place])]
        found.append((number, int(spans["start"][place]), int(spans["length"][place])))
    whole_since = _complete_since(trace)
    whole: list[MarkedStep] = [step for step in found if step[1] >= whole_since]
    in_order = sorted(dict.fromkeys(whole), key=lambda step: step[1])[:most]
    return in_order or [*iterations(trace)] or whole_span(trace)


def _complete_since(trace: Trace) -> int:
    """Return the time from which the trace is complete; the smallest integer if all of it is.

    VizTracer's ring buffer stores an event when it ends, and drops the oldest if it is full.
    """
    metadata = trace.members.get("viztracer_metadata")
    overflowed = isinstance(metadata, dict) and metadata.get("overflow") is True
    ends = trace.spans["start"] + trace.spans["length"]
    return int(ends.min()) if overflowed and len(ends) else np.iinfo(np.int64).min


def whole_span(trace: Trace) -> list[MarkedStep]:
    """Return the job's whole time as one step without a number; empty if there is none."""
    jobs, ends = job_ends(trace)
    if not jobs.any():
        return []
    begin = int(trace.spans["start"][jobs].min())
    return [(None, begin, int(ends[jobs].max()) - begin)]


def job_ends(trace: Trace) -> tuple[NDArray[np.bool_], Numbers]:
    """Return which spans are the job's, and when the job ended each of them.

    The end of the recording is not the job's: it is a call that was open until the last event.
    """
    start, end = trace.spans["start"], trace.spans["start"] + trace.spans["length"]
    jobs, own = ~trace.category(RECORDINGS), overhead(trace)
    if not jobs.any():
        return jobs, end
    ending = own & (end == end[jobs].max()) & (start > start[jobs].min())
    if not ending.any():
        return jobs, end
    stopped = int(start[ending].min())
    jobs &= (start < stopped) | ending | trace.category(ON_DEVICE)
    return jobs, np.where(own | trace.category(FRAMES), np.minimum(end, stopped), end)


def launch_times(trace: Trace, started: Launches) -> Numbers:
    """Return when each span began on the host: of a device activity, when it was launched.

    If that is unknown, it is when the span began.
    """
    when: Numbers = trace.spans["start"].copy()
    called = started.call != UNKNOWN
    when[started.work[called]] = when[started.call[called]]
    return when


def in_steps(trace: Trace, steps: Sequence[MarkedStep], started: Launches) -> NDArray[np.bool_]:
    """Return which spans begin in steps. A device activity counts where it was launched.

    Activities that were launched before the recording are in no step (:func:`from_before`).
    """
    when = launch_times(trace, started)
    if not steps or steps[0][0] is None:
        return np.ones(len(when), bool)
    begins = np.array([begin for _, begin, _ in steps], np.int64)
    ends = begins + np.array([length for _, _, length in steps], np.int64)
    found = inside(when, cover(begins, ends))
    return found & ~from_before(trace, steps, started)


def from_before(trace: Trace, steps: Sequence[MarkedStep], started: Launches) -> NDArray[np.bool_]:
    """Return the device activities that belong to no step: launched before the recording.

    If no step is marked, the whole trace counts, and there are none.
    """
    found = np.zeros(len(trace.spans["start"]), bool)
    if steps and steps[0][0] is not None:
        found[started.work[in_flight(trace, started)]] = True
    return found


def collectives(trace: Trace) -> Numbers:
    """Return the spans that are communication: work of devices, and labels on the host.

    Labels such as ``nccl:all_reduce`` only name the launch of a kernel, and do not count.
    """
    return np.flatnonzero(trace.communication | host_communication(trace))


def host_communication(trace: Trace) -> NDArray[np.bool_]:
    """Return the labels of communication on the host."""
    labels = trace.category(LABELS)
    return labels & trace.named(lambda name: name.lower().startswith(_OF_THE_HOST))


def step_times(
    trace: Trace, steps: Sequence[MarkedStep], started: Launches, receives: Receives | None = None
) -> list[Step]:
    """Return a row for each step on each device, or on the host if no device worked.

    Marked steps have what was launched in them.

    Args:
        trace: The trace.
        steps: The marked steps.
        started: Device activities and their launches.
        receives: Spans that receive messages; without it they are not counted.
    """
    kernels, collective = trace.category(KERNELS)[started.work], trace.communication
    if not kernels.any():
        return _on_host(trace, steps, receives)
    kernels |= collective[started.work]
    kernels &= ~from_before(trace, steps, started)[started.work]
    chosen, call = started.work[kernels], started.call[kernels]
    launched = trace.spans["start"][np.where(call == UNKNOWN, chosen, call)]
    order = np.argsort(launched, kind="stable")
    chosen, launched = chosen[order], launched[order]
    rows = []
    for device in distinct(trace.spans["device"][chosen]).tolist():
        selected = trace.spans["device"][chosen] == device
        work, when = chosen[selected], launched[selected]
        for step in steps:
            number, begin, length = step
            ends = np.searchsorted(when, (begin, begin + length))
            own = work if number is None else work[slice(*ends)]
            known = receives is not None and not receives.unknown[own].any()
            received = trace.when(own[receives.there[own]]) if receives and known else None
            communication, computing = (
                trace.when(own[which[own]]) for which in (collective, ~collective)
            )
            rows.append(_row(device, step, computing, communication, received))
    return rows


def _on_host(trace: Trace, steps: Sequence[MarkedStep], receives: Receives | None) -> list[Step]:
    collective = host_communication(trace)
    chosen = trace.category(OPERATORS, CALLS) | collective
    covers = [trace.when(chosen & ~collective), trace.when(chosen & collective)]
    if receives:
        covers += [trace.when(chosen & receives.there), trace.when(chosen & receives.unknown)]
    rows = []
    for step in steps:
        _, begin, length = step
        computing, communication, *messages = (
            clipped(where, begin, begin + length) for where in covers
        )
        received = messages[0] if messages and not len(messages[1][0]) else None
        rows.append(_row(HOST, step, computing, communication, received))
    return rows


def _row(
    device: int, step: MarkedStep, computing: Cover, communication: Cover, received: Cover | None
) -> Step:
    number, begin, length = step
    busy = united(computing, communication)
    first = int(busy[0][0]) if len(busy[0]) else begin
    stage = int(busy[1][-1]) - first if len(busy[0]) else 0
    return Step(
        device=device,
        number=number,
        begin=begin,
        length=length,
        computing=covered(computing),
        communication=covered(communication),
        overlapped=both(computing, communication),
        free=stage - covered(busy),
        stage=stage,
        preparing=first - begin,
        receiving=None if received is None else covered(received),
    )


def median_of(lengths: Sequence[float]) -> float:
    """Return the median; for an even count, the mean of the two middle values."""
    return float(np.median(np.array(lengths, float)))


def outliers_by_kind(
    lengths: Sequence[int], kinds: Sequence[str], tokens: Sequence[int | None]
) -> list[int]:
    """Return the indices of the outliers among the steps of each kind, the longest first.

    More tokens may take longer. So where they are known, an outlier takes longer for each token
    too.

    Args:
        lengths: How long each step took.
        kinds: The kind of each, if it is an iteration.
        tokens: The tokens of each; None if unknown.
    """
    found: list[int] = []
    for kind in dict.fromkeys(kinds):
        places = [place for place, one in enumerate(kinds) if one == kind]
        far = {places[far] for far in outliers([lengths[place] for place in places])}
        sizes = [size for place in places if (size := tokens[place])]
        if len(sizes) == len(places):
            rates = [lengths[place] / size for place, size in zip(places, sizes, strict=True)]
            far &= {places[slow] for slow in outliers(rates)}
        found += far
    return sorted(found, key=lambda place: -lengths[place])


def outliers(lengths: Sequence[float]) -> list[int]:
    """Return the indices of the outliers, the longest first.

    With fewer than three steps there are none: no step is known to be typical.

    Args:
        lengths: How long each step took.
    """
    if len(lengths) < 3:
        return []
    times, median = np.array(lengths, float), median_of(lengths)
    least = MIN_DEVIATIONS * float(np.median(np.abs(times - median)))
    far = (median > 0) & (times >= MIN_RATIO * median) & (times - median > least)
    return sorted(np.flatnonzero(far).tolist(), key=lambda place: -lengths[place])


class IterationTime(NamedTuple):
    """An iteration and its times, in ns.

    Attributes:
        number: Its number.
        label: What its label says.
        begin: When the host began it, since the trace's base time.
        on_host: How long the host took.
        waited: How long of that the host waited for work from before the recording.
        on_device: Time from start to end of the work that it launched, without work from before
            the recording; None without a device.
        busy: How long kernels of that work ran; None without a device.
    """

    number: int
    label: Iteration
    begin: int
    on_host: int
    waited: int
    on_device: int | None
    busy: int | None

    @property
    def time(self) -> int:
        """How long it took, without work from before the recording.

        The host may be done long before the device.
        """
        return max(self.on_host - self.waited, self.on_device or 0)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens through the model in a second; None if unknown."""
        return self.label.tokens / self.time * 1e9 if self.label.tokens and self.time else None


def by_kind(found: Iterable[IterationTime]) -> dict[str, list[IterationTime]]:
    """Return iterations by their kind, the most frequent kind first."""
    kinds: dict[str, list[IterationTime]] = {}
    for one in found:
        kinds.setdefault(one.label.kind, []).append(one)
    return dict(sorted(kinds.items(), key=lambda kind: -len(kind[1])))


def iteration_times(
    labels: Mapping[MarkedStep, Iteration],
    steps: Sequence[Step],
    device: int | None,
    earlier: Cover,
    blocking: Cover,
) -> dict[MarkedStep, IterationTime]:
    """Return the times of the iterations.

    Args:
        labels: The iterations.
        steps: The same on each device.
        device: The device whose times are wanted; None if no device worked.
        earlier: When the device ran only work from before the recording.
        blocking: When the host waited for the device.
    """
    of = {(one.number, one.begin, one.length): one for one in steps if one.device == device}
    found = {}
    for key, label in labels.items():
        number, begin, length = key
        inside = [clipped(where, begin, begin + length) for where in (earlier, blocking)]
        on_device = busy = None
        if one := of.get(key):
            first = begin + one.preparing
            on_device = one.stage - covered(clipped(earlier, first, first + one.stage))
            busy = one.computing + one.communication - one.overlapped
        times = (length, both(*inside), on_device, busy)
        found[key] = IterationTime(number or 0, label, begin, *times)
    return found

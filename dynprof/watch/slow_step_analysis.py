"""What a slow step did: its stacks against those of usual steps, and a verdict in words.

A stack represents the time since the sample before it. So a call that holds the GIL gets its
whole time, although only one sample, after its end, shows it. No cause is said to have taken more
than the additional time of the step.

Only a sample that was taken once the step was overdue counts as additional time. An earlier one
shows what usual steps do then, too, and counts as usual time. A late one may do so as well,
in a step that something unseen has delayed. So the usual time of a line is subtracted, and the
samples of a line that is usual must span more than that.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dynprof.runtime.plural import counted
from dynprof.runtime.stacks import is_of_a_library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType

    from dynprof.watch.resources import Collection
    from dynprof.watch.sampler import Gap, Sample, SlowStep, Stack

MIN_CAUSE_SHARE = 0.5
"""Share of the additional time from which on something is the cause."""
MIN_INNER_SHARE = 0.6
"""Share of the additional time of a frame that a frame inside it must have to be named instead."""
MAX_LINES = 4
"""Lines of one function that are named, if only several together are the cause."""
MAX_THREADS = 20
"""Threads in a record, those with the most additional time first."""
MIN_WORK_SHARE = 1 / 3
"""Share of the additional time in CPU time from which on the code is the cause: the more a
step computes, the longer it also waits for a CPU."""
MIN_STOPPED_SHARE = 0.8
"""Share of the additional time in which the process must not have run, where samples show a line:
a paused CPU of a virtual machine may have stopped the sampler alone."""
MIN_SPREAD_SAMPLES = 3
"""Samples of the additional time from which on it can be seen to be spread over several lines."""
MAX_RARE_SHARE = 0.1
"""Share of a usual step up to which a line is unusual, so that a single sample shows that it took
longer: it is no line that a delayed step passes at that moment."""
MAX_IDLE_SHARE = 0.3
"""Share of a time up to which the CPU time in it counts as waiting."""
CODE, UNKNOWN, COLLECTION = "code", "unknown", "garbage collection"
NO_SAMPLE = "no sample covers the additional time"
NO_LINE = "the samples show only lines in which usual steps are, too"
BACKWARD = "the all-reduce of the backward pass"
_OWN = f"{Path(__file__).parents[1]}/"
_COLLECTIVES = ("torch/distributed/distributed_c10d.py",)
_SYNCHRONISATIONS = ("torch/cuda/__init__.py", "torch/cuda/streams.py", "torch/accelerator")
_PHASES = (
    ("torch/utils/data/dataloader.py", "__next__", "data loading"),
    ("torch/_tensor.py", "backward", "backward"),
    ("torch/autograd/__init__.py", "backward", "backward"),
    ("torch/optim/", "", "optimizer"),
    ("torch/serialization.py", "save", "checkpoint"),
    ("torch/distributed/checkpoint/", "", "checkpoint"),
    ("torch/nn/modules/module.py", "_call_impl", "forward"),
)
"""Where a phase is seen in a stack: a part of the file, the function, and the phase's name."""


class Frame(NamedTuple):
    """A line of a function.

    Attributes:
        name: The function.
        file: Its file.
        line: The line that runs; 0 if unknown.
        more_lines: Others of its lines, if only several together have the time.
    """

    name: str
    file: str
    line: int
    more_lines: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """The frame as the page and the verdict show it."""
        lines = ", ".join(map(str, (self.line, *self.more_lines)))
        return f"{self.name} ({Path(self.file).name}:{lines})"


@dataclass
class Node:
    """A frame below the frames that called it, with its time in a slow step and in a usual one."""

    frame: Frame
    slow_ms: float = 0.0
    usual_ms: float = 0.0
    inner: dict[Frame, Node] = field(default_factory=dict)
    seen_ns: list[int] = field(default_factory=list)
    """When the samples of the step showed it."""

    @property
    def extra_ms(self) -> float:
        """How much longer it took than usual."""
        return self.slow_ms - self.usual_ms

    def has_taken_longer(self, rare_ms: float) -> bool:
        """Return whether the samples show it for longer than usual, or at all if it is rare."""
        span_ms = (max(self.seen_ns) - min(self.seen_ns)) / 1e6 if self.seen_ns else 0.0
        return self.usual_ms <= max(span_ms, rare_ms)


@dataclass(frozen=True)
class Snapshot:
    """What the sampler knew when a step was slow; its attributes have the same names.

    Attributes:
        cpus: How many CPUs this process may use.
    """

    ring: list[Sample]
    gaps: list[Gap]
    counters: list[tuple[int, dict[str, float]]]
    gpus: list[tuple[int, list[dict[str, Any]]]]
    collections: list[Collection]
    codes: dict[int, CodeType]
    names: dict[int, str]
    excluded: list[tuple[int, int]]
    cpus: int = 1


class SlowStepAnalysis:
    """One slow step, examined.

    Args:
        step: The step.
        known: What the sampler knew.
        ranks: The number of ranks of the job.
    """

    def __init__(self, step: SlowStep, known: Snapshot, ranks: int = 1) -> None:
        self._step, self._known, self._ranks = step, known, ranks
        self.took_ms = (step.ended_ns - step.began_ns) / 1e6
        self.usual_ms = step.usual_ns / 1e6
        self.extra_ms = self.took_ms - self.usual_ms
        self._frames: dict[tuple[int, int], Frame] = {}
        self._stacks: dict[Stack, list[Frame]] = {}
        self._waits: dict[Stack, str] = {}
        self._phases: dict[Stack, str] = {}
        self._inside = [s for s in known.ring if step.began_ns < s.at_ns <= step.ended_ns]
        overdue_ns = step.began_ns + step.overdue_ns
        self._early = [sample for sample in self._inside if sample.at_ns <= overdue_ns]
        self._late = self._inside[len(self._early) :]
        self._usual = [s for s in known.ring if s.is_regular and not self._is_excluded(s.at_ns)]
        self.threads = self._threads()
        self.waited_ms, self.usual_wait_ms, self.waited_in = self._waited()
        self.cause, self.place, self.text = self._verdict()

    def _is_excluded(self, at_ns: int) -> bool:
        return any(began_ns < at_ns <= ended_ns for began_ns, ended_ns in self._known.excluded)

    def _weighted(self) -> Iterator[tuple[Sample, int, int]]:
        """Yield the samples of the step, each with start and end in ns of the time it counts for.

        The usual time is that of the early samples, the additional time that of the late ones.
        """
        step = self._step
        usual_ns = min(step.began_ns + step.usual_ns, step.ended_ns)
        yield from _in_turn(self._early, step.began_ns, usual_ns)
        yield from _in_turn(self._late, usual_ns, step.ended_ns)

    @property
    def unseen_ms(self) -> float:
        """The time of the step that no sample covers."""
        return (
            self.took_ms
            - sum(until_ns - from_ns for _, from_ns, until_ns in self._weighted()) / 1e6
        )

    def _threads(self) -> dict[int, Node]:
        """Return the tree of calls of each thread."""
        slow: dict[tuple[int, Stack], float] = defaultdict(float)
        usual: dict[tuple[int, Stack], int] = defaultdict(int)
        seen: dict[tuple[int, Stack], list[int]] = defaultdict(list)
        for sample, from_ns, until_ns in self._weighted():
            for one in sample.stacks:
                slow[one] += (until_ns - from_ns) / 1e6
                seen[one].append(sample.at_ns)
        for sample in self._usual:
            for one in sample.stacks:
                usual[one] += 1
        trees: dict[int, Node] = {}
        seen_ms = self.took_ms - self.unseen_ms
        for thread, stack in {**slow, **usual}:
            # Another thread does the same all the time, so its shares are compared.
            usual_ms = self.usual_ms if thread == self._step.thread else seen_ms
            usual_ms *= usual[thread, stack] / max(1, len(self._usual))
            root = trees.setdefault(thread, Node(Frame("all", "", 0)))
            for node in self._nodes(root, stack):
                node.slow_ms += slow[thread, stack]
                node.usual_ms += usual_ms
                node.seen_ns += seen[thread, stack]
        return trees

    def _nodes(self, node: Node, stack: Stack) -> Iterator[Node]:
        """Yield the nodes of a stack from the root on; missing ones are added."""
        yield node
        for frame in self.frames(stack):
            node = node.inner.setdefault(frame, Node(frame))
            yield node

    def frames(self, stack: Stack) -> list[Frame]:
        """Return the frames of a stack, the outermost first."""
        if (known := self._stacks.get(stack)) is not None:
            return known
        pairs = zip(stack[-2::-2], stack[::-2], strict=True)
        found = self._stacks[stack] = [self._frame(code, offset) for code, offset in pairs]
        while found and found[-1].file.startswith(_OWN):  # it noted the step or a collection
            found.pop()
        return found

    def _frame(self, code_id: int, offset: int) -> Frame:
        key = code_id, offset
        if key not in self._frames:
            code = self._known.codes[code_id]
            lines = code.co_lines()
            line = next((n for begin, end, n in lines if begin <= offset < end), None)
            self._frames[key] = Frame(code.co_qualname, code.co_filename, line or 0)
        return self._frames[key]

    def _stack_of(self, sample: Sample) -> Stack:
        return dict(sample.stacks).get(self._step.thread, ())

    # where the time went

    def _waited(self) -> tuple[float, float, str]:
        """Return how long the training thread waited for other ranks or a device, and in what."""
        times = self._by(lambda sample: self._waits_in(self._stack_of(sample)))
        times.pop("", None)
        backward_ms = self._idle_backward_ms() if self._ranks > 1 else 0.0
        if backward_ms:
            times[BACKWARD] = backward_ms, self.phases().get("backward", (0.0, 0.0))[1]
        slow_ms = sum(slow for slow, _ in times.values())
        usual_ms = sum(usual for _, usual in times.values())
        return slow_ms, usual_ms, max(times, key=lambda name: times[name][0], default="")

    def _idle_backward_ms(self) -> float:
        """Return how long no thread computed while the training thread was in a backward pass.

        The backward pass of DistributedDataParallel waits in C++ for the other ranks' all-reduce.
        """
        idle_ns = 0
        for sample, from_ns, until_ns in self._weighted():
            used = self._between("process_ns", from_ns, until_ns)
            in_backward = any(
                frame.name == "_engine_run_backward"
                for frame in self.frames(self._stack_of(sample))
            )
            if in_backward and used is not None and used < MAX_IDLE_SHARE * (until_ns - from_ns):
                idle_ns += until_ns - from_ns
        return idle_ns / 1e6

    def phases(self) -> dict[str, tuple[float, float]]:
        """Return the time of each phase in this step and in a usual one, in ms."""
        return self._by(self._phase)

    def _by(self, name_of: Callable[[Sample], str]) -> dict[str, tuple[float, float]]:
        """Return the time in this step and in a usual one, in ms, by a name for each sample."""
        slow: dict[str, float] = defaultdict(float)
        usual: dict[str, float] = defaultdict(float)
        for sample, from_ns, until_ns in self._weighted():
            slow[name_of(sample)] += (until_ns - from_ns) / 1e6
        for sample in self._usual:
            usual[name_of(sample)] += self.usual_ms / len(self._usual)
        return {name: (slow[name], usual[name]) for name in {**slow, **usual}}

    def _waits_in(self, stack: Stack) -> str:
        if stack not in self._waits:
            self._waits[stack] = _waits_in(self.frames(stack))
        return self._waits[stack]

    def _phase(self, sample: Sample) -> str:
        named = [name for name in sample.phases if not name.startswith("step ")]
        if named:
            return named[-1]
        stack = self._stack_of(sample)
        if stack not in self._phases:
            self._phases[stack] = _phase_in(self.frames(stack))
        return self._phases[stack]

    def collected_ms(self) -> tuple[float, float, list[Collection]]:
        """Return how long garbage was collected in this step, and usually in as much time.

        The last item has the collections in this step.
        """
        step = self._step
        inside = [
            one for one in self._known.collections
            if one.ended_ns > step.began_ns and one.began_ns < step.ended_ns
        ]  # fmt: skip
        own_ms = sum(
            min(one.ended_ns, step.ended_ns) - max(one.began_ns, step.began_ns) for one in inside
        )
        others = [one for one in self._known.collections if not self._is_excluded(one.ended_ns)]
        seen_ns = self._known.ring[-1].at_ns - self._known.ring[0].at_ns if self._known.ring else 0
        since_ns = self._known.ring[0].at_ns if self._known.ring else 0
        usual_ns = sum(one.ended_ns - one.began_ns for one in others if one.began_ns >= since_ns)
        return own_ms / 1e6, usual_ns / max(1, seen_ns) * self.took_ms, inside

    def counted(self, name: str) -> float | None:
        """Return by how much a counter grew in the step, more than usual; None if unknown."""
        # A reading is made when the step is overdue: what comes after it is the additional time.
        # A cgroup may be throttled before that, and usually is not.
        is_rare = name == "throttled_ms"
        latest_ns = self._step.began_ns + (0 if is_rare else 2 * self._step.usual_ns)
        before = [one for one in self._known.counters if one[0] <= latest_ns and name in one[1]]
        after = [one for one in self._known.counters if one[0] >= self._step.ended_ns]
        if not before or not after or name not in after[0][1]:
            return None
        (from_ns, first), (until_ns, last), (oldest_ns, oldest) = before[-1], after[0], before[0]
        grown = last[name] - first[name]
        outside_ns = max(0, self._step.began_ns - from_ns) + until_ns - self._step.ended_ns
        if from_ns > oldest_ns:
            grown -= (first[name] - oldest[name]) / (from_ns - oldest_ns) * outside_ns
        return min(max(0.0, grown), self.extra_ms) if name.endswith("_ms") else max(0.0, grown)

    def used(self, name: str) -> float | None:
        """Return by how much a value of the samples' usage grew in the step; None if unknown.

        Between samples around the additional time, it may have grown at any time.
        """
        if not self._late:
            return None
        return self._between(name, self._step.began_ns, self._step.ended_ns)

    def _between(self, name: str, from_ns: int, until_ns: int) -> float | None:
        before, after = self._value_at(name, from_ns), self._value_at(name, until_ns)
        return None if before is None or after is None else after - before

    def _value_at(self, name: str, at_ns: int) -> float | None:
        """Return a value of the samples' usage, interpolated between two samples."""
        after = bisect.bisect_left(self._known.ring, at_ns, key=lambda sample: sample.at_ns)
        if not 0 < after < len(self._known.ring):
            return None
        first, last = self._known.ring[after - 1], self._known.ring[after]
        part = (at_ns - first.at_ns) / max(1, last.at_ns - first.at_ns)
        value, then = float(getattr(first.used, name)), float(getattr(last.used, name))
        return value + part * (then - value)

    def stopped(self) -> tuple[float, float]:
        """Return how long the process did not run, and how long a call kept the lock, in ms."""
        stopped_ms = locked_ms = 0.0
        for gap in self._known.gaps:
            began_ns = max(gap.began_ns, self._step.began_ns)
            ms = (min(gap.ended_ns, self._step.ended_ns) - began_ns) / 1e6
            if ms <= 0:
                continue
            if gap.is_of_lock:
                locked_ms += max(0.0, ms - gap.queued_ns / 1e6)
            elif gap.used_ns + gap.queued_ns < (gap.ended_ns - gap.began_ns) / 2:
                stopped_ms += ms
        return min(stopped_ms, self.extra_ms), min(locked_ms, self.extra_ms)

    # the verdict

    def _verdict(self) -> tuple[str, str, str]:
        """Return the cause in a word, its place in the code, and both in words."""
        place = self.place_of(self._step.thread)
        if found := self._of_process(place):
            cause, text = found
            return cause, place if place and place in text else "", text
        more_ms = min(self.waited_ms - self.usual_wait_ms, self.extra_ms)
        is_shown = len(self._late) > 1 or self.usual_wait_ms <= MAX_RARE_SHARE * self.usual_ms
        if is_shown and more_ms >= MIN_CAUSE_SHARE * self.extra_ms:
            text = f"{self._bound}{more_ms:,.0f} ms more waiting in {self.waited_in}"
            where = f", called at {place}" if place else ""
            return "waiting", place, f"{text}{where}; look at the other ranks or the device"
        return self._of_code(place)

    def _of_process(self, place: str) -> tuple[str, str] | None:
        """Return a cause that is in no line of the script, in a word and in words."""
        least_ms = MIN_CAUSE_SHARE * self.extra_ms
        collected_ms, usual_ms, collections = self.collected_ms()
        if collected_ms - usual_ms >= least_ms:
            return COLLECTION, _collected(collections, collected_ms, place)
        stopped_ms, throttled_ms = self.stopped()[0], self.counted("throttled_ms") or 0.0
        if throttled_ms >= least_ms or (stopped_ms >= least_ms and throttled_ms >= 1):
            text = f"its cgroup had used up its CPU time for {throttled_ms:,.0f} ms"
            return "throttled", f"the process did not run: {text}"
        ms = min(self.queued_ms - self._usually("queued_ns"), self.extra_ms)
        more_work_ms = (self.used("thread_ns") or 0.0) / 1e6 - self._usually("thread_ns")
        if ms >= least_ms and more_work_ms < MIN_WORK_SHARE * self.extra_ms:
            text = f"the training thread waited {ms:,.0f} ms longer than usual for a CPU"
            where = f"; most of it in {place}" if place else ""
            return "no CPU", f"{text}, which {self._who_ran()}{where}"
        if stopped_ms >= (MIN_STOPPED_SHARE * self.extra_ms if place else least_ms):
            text = f"the process did not run for {stopped_ms:,.0f} ms"
            return "stopped", f"{text}: it was stopped (SIGSTOP, a debugger), or its machine was"
        return None

    def _who_ran(self) -> str:
        """Return in words who used the CPUs that the training thread waited for."""
        own = (self.used("process_ns") or 0.0) / 1e6 / self.took_ms
        count = self._known.cpus
        whose = "other processes" if own < count / 2 else "its own threads"
        return f"{whose} used ({own:.1f} of {counted(count, 'CPU')} by this process)"

    def _of_code(self, place: str) -> tuple[str, str, str]:
        locked_ms = self.stopped()[1]
        if not place and locked_ms >= MIN_CAUSE_SHARE * self.extra_ms:
            text = f"a call held the GIL for {locked_ms:,.0f} ms, and no sample shows which"
            return "lock", "", text
        if not self._late:
            return UNKNOWN, "", NO_SAMPLE
        is_whole = bool(self._early) or self.extra_ms >= 2 * self.usual_ms
        if not place and (not is_whole or len(self._late) < MIN_SPREAD_SAMPLES):
            return UNKNOWN, "", NO_LINE
        if not place:
            return "spread", "", "the additional time is spread over the whole step"
        text = f"{self._more_in(self._step.thread):,.0f} ms more in {place}"
        if locked_ms - self.queued_ms >= MIN_CAUSE_SHARE * self.extra_ms:
            return CODE, place, f"{text}, in a call that holds the GIL{self._elsewhere()}"
        text = f"{self._bound}{text}"
        if self._idle_ms() > MIN_CAUSE_SHARE * self.took_ms:
            text += ", mostly off-CPU: it waits there"
        return CODE, place, f"{text}{self._elsewhere()}"

    @property
    def _bound(self) -> str:
        """What to write before a time in one place: one sample shows no more than that."""
        return "up to " if len(self._late) == 1 else ""

    def place_of(self, thread: int) -> str:
        """Return the innermost line, or lines of one function, with most of the additional time.

        It is empty if the time is spread over the step.
        """
        path, _ = self._path(thread)
        if not path:
            return ""
        own = [frame for frame in path if not is_of_a_library(frame.file)]
        if not own or own[-1] is path[-1]:
            return path[-1].text
        return f"{path[-1].text}, called at {own[-1].text}"

    def _path(self, thread: int) -> tuple[list[Frame], float]:
        rare_ms = MAX_RARE_SHARE * self.usual_ms
        return _path(self.threads.get(thread), MIN_CAUSE_SHARE * self.extra_ms, rare_ms)

    def _more_in(self, thread: int) -> float:
        """Return the additional time of the place that :meth:`place_of` names, in ms."""
        _, more_ms = self._path(thread)
        return min(more_ms, self.extra_ms)  # a usual step may not have been there at all

    def _usually(self, name: str) -> float:
        """Return by how much a time of the samples' usage grows in a usual step, in ms."""
        ring = self._known.ring
        before = bisect.bisect_left(ring, self._step.began_ns, key=lambda sample: sample.at_ns)
        if before < 2:
            return 0.0
        first, last = ring[0], ring[before - 1]
        usual_ns = float(getattr(last.used, name) - getattr(first.used, name))
        rate = usual_ns / max(1, last.at_ns - first.at_ns)
        return rate * self.usual_ms

    def _idle_ms(self) -> float:
        """Return how long the training thread neither ran nor waited for a CPU."""
        if (used_ns := self.used("thread_ns")) is None:
            return 0.0
        return self.took_ms - used_ns / 1e6 - self.queued_ms

    @property
    def queued_ms(self) -> float:
        """How long the training thread waited for a CPU, which it did not use then."""
        left_ms = self.took_ms - (self.used("thread_ns") or 0.0) / 1e6
        return max(0.0, min((self.used("queued_ns") or 0.0) / 1e6, left_ms))

    def _elsewhere(self) -> str:
        """Return what another thread did that it does not usually do; empty for nothing."""
        for thread in self.threads:
            if thread != self._step.thread and (found := self.place_of(thread)):
                name = self._known.names.get(thread)
                owner = f"thread {name}" if name else "another thread"
                return f"; at the same time {owner} was in {found}"
        return ""

    def evidence(self) -> list[str]:
        """Return further facts about the step, each a sentence."""
        collected_ms, _, collections = self.collected_ms()
        stopped_ms, locked_ms = self.stopped()
        values = {
            "the training thread used {:,.0f} ms of CPU time": (self.used("thread_ns") or 0) / 1e6,
            "the training thread waited {:,.0f} ms for a CPU": self.queued_ms,
            "{:,.0f} page faults had to wait for a disk": self.used("major_faults"),
            f"{counted(len(collections), 'garbage collection')} took {{:,.1f}} ms": collected_ms,
            "the process did not run for {:,.0f} ms": stopped_ms,
            "a call held the GIL for {:,.0f} ms": locked_ms,
            **{words: self.counted(name) for name, words in _COUNTERS.items()},
        }
        found = [words.format(value) for words, value in values.items() if value and value >= 1]
        after = [gpus for at_ns, gpus in self._known.gpus[-1:] if at_ns >= self._step.ended_ns]
        return found + [text for gpus in after for gpu in gpus for text in _about(gpu)]

    def stacks(self) -> dict[int, Node]:
        """Return the trees for the record: the training thread first, then the most changed."""
        rest = sorted(
            (thread for thread in self.threads if thread != self._step.thread),
            key=lambda thread: -_moved(self.threads[thread]),
        )
        found = [thread for thread in (self._step.thread, *rest) if thread in self.threads]
        return {thread: self.threads[thread] for thread in found[:MAX_THREADS]}

    def name_of(self, thread: int) -> str:
        """Return the name of a thread."""
        if thread == self._step.thread:
            return f"{self._known.names.get(thread, thread)} (training)"
        return str(self._known.names.get(thread, thread))

    @property
    def verdict(self) -> tuple[str, str, int]:
        """What slow steps of one kind share: the cause, its place, the generation of a gc."""
        is_gc = self.cause == COLLECTION
        generations = [one.generation for one in self.collected_ms()[2]] if is_gc else []
        return self.cause, self.place, max(generations, default=0)

    @property
    def additional_samples(self) -> int:
        """How many samples show the additional time."""
        return len(self._late)

    @property
    def counts(self) -> tuple[int, int]:
        """How many samples the step has, and how many usual steps have."""
        return len(self._inside), len(self._usual)


_COUNTERS = {
    "throttled_ms": "the cgroup was throttled for {:,.0f} ms",
    "read_mb": "the process read {:,.0f} MB from disks",
    "written_mb": "the process wrote {:,.0f} MB",
    "pressure_io_ms": "tasks of the machine waited {:,.0f} ms for disks",
    "pressure_memory_ms": "tasks of the machine waited {:,.0f} ms for memory",
}


def _in_turn(
    samples: list[Sample], from_ns: int, until_ns: int
) -> Iterator[tuple[Sample, int, int]]:
    """Yield samples with the time since the one before each; the last one also has the rest."""
    for place, sample in enumerate(samples, 1):
        is_last = place == len(samples)
        end_ns = until_ns if is_last else min(max(from_ns, sample.at_ns), until_ns)
        yield sample, from_ns, end_ns
        from_ns = end_ns


def _path(root: Node | None, least_ms: float, rare_ms: float) -> tuple[list[Frame], float]:
    """Return the frames down to the innermost with most of the additional time, and its time in ms.

    Args:
        root: The tree of a thread.
        least_ms: The additional time that it must have.
        rare_ms: The usual time up to which a line is unusual.
    """
    waiting = [(root, list[Frame]())] if root else []
    for node, path in waiting:  # the list grows during the loop
        if path and node.extra_ms >= least_ms and node.has_taken_longer(rare_ms):
            return _descend(node, path, rare_ms)
        inner = sorted(node.inner.values(), key=lambda one: -one.extra_ms)
        waiting += [(one, [*path, one.frame]) for one in inner]
    return [], 0.0


def _descend(node: Node, path: list[Frame], rare_ms: float) -> tuple[list[Frame], float]:
    while longer := [one for one in node.inner.values() if one.has_taken_longer(rare_ms)]:
        inner = max(longer, key=lambda one: one.extra_ms)
        if inner.extra_ms < MIN_INNER_SHARE * node.extra_ms:
            function, more_ms = _slowest_function(longer)
            if more_ms >= MIN_INNER_SHARE * node.extra_ms:
                return [*path, function], more_ms
            break
        node, path = inner, [*path, inner.frame]
    return path, node.extra_ms


def _slowest_function(nodes: list[Node]) -> tuple[Frame, float]:
    """Return the function whose lines together have the most additional time, and that time."""
    functions: dict[tuple[str, str], list[Node]] = defaultdict(list)
    for node in nodes:
        functions[node.frame.name, node.frame.file].append(node)
    lines = max(functions.values(), key=lambda those: sum(one.extra_ms for one in those))
    numbers = sorted({one.frame.line for one in lines if one.extra_ms > 0})
    first, *others = numbers[:MAX_LINES]
    frame = lines[0].frame._replace(line=first, more_lines=tuple(others))
    return frame, sum(one.extra_ms for one in lines)


def _waits_in(frames: Iterable[Frame]) -> str:
    """Return the collective or synchronisation in which a stack stands; empty if it does not."""
    for frame in frames:
        if frame.file.endswith(_COLLECTIVES) and frame.name != "destroy_process_group":
            return frame.name
        if frame.name == "synchronize" and any(part in frame.file for part in _SYNCHRONISATIONS):
            return frame.name
    return ""


def _phase_in(frames: Iterable[Frame]) -> str:
    """Return the phase that a stack shows."""
    for frame in frames:
        for file, function, phase in _PHASES:
            if file in frame.file and frame.name.endswith(function):
                return phase
    return "rest"


def _collected(collections: list[Collection], ms: float, place: str) -> str:
    at = f", in {place}" if place else ""
    if len(collections) == 1:
        first = collections[0].generation
        return f"garbage collection of generation {first} took {ms:,.0f} ms{at}"
    oldest = max(one.generation for one in collections)
    number = counted(len(collections), "garbage collection")
    return f"{number}, up to generation {oldest}, took {ms:,.0f} ms{at}"


def _about(gpu: dict[str, Any]) -> Iterator[str]:
    if gpu.get("limited_by"):
        clocks = f"{gpu.get('sm_mhz')} of {gpu.get('most_mhz')} MHz"
        yield f"GPU {gpu['gpu']} runs at {clocks}, limited by {', '.join(gpu['limited_by'])}"


def _moved(node: Node) -> float:
    return sum(abs(inner.extra_ms) for inner in node.inner.values())

"""Why a device, or one of its streams, was idle: each idle nanosecond has one cause.

A gap is when it ran nothing. The launch of the next activity divides a gap. Until that call ended,
the device waited for the host. After it, the launched activity waited for the device or its queue.
The time before the call is divided by what the launching thread did, causes before symptoms.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.timeline.breakdown import COLLECTING, COMPILERS, COMPILING, RECORDING
from dynprof.analysis.measures.timeline.launches import UNKNOWN, held, in_flight, innermost
from dynprof.analysis.measures.timeline.operators import is_step, step_marks
from dynprof.analysis.measures.timeline.overhead import overhead
from dynprof.analysis.measures.timeline.phase_times import (
    CHECKPOINT,
    LOADING,
    OPTIMIZER,
    phase_spans,
)
from dynprof.analysis.measures.user_code import is_user_frame
from dynprof.analysis.reading.events import (
    CALLS,
    COLLECTIONS,
    COPIES,
    FRAMES,
    LAUNCHES,
    OPERATORS,
    OVERHEADS,
)
from dynprof.analysis.reading.spans import (
    ROOT,
    clipped,
    cover,
    distinct,
    inside,
    parents,
    span_at,
    united,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Calls
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.signedinteger[Any]]
    """Whole numbers; those of indices and codes have 32 bits or less."""

EDGE = -1
"""In place of the activity before the first gap, and of the one after the last."""
NONE = -1
"""In place of an index or a thread, if there is none or it is unknown."""
PAGEABLE, SYNCHRONISING = "copying pageable memory", "synchronising"
ALLOCATING = "allocating device memory"
FIRST_USE = "first use of the device or a library"

_WAITS = re.compile(
    r"Synchronize|^(cuda|cu|hip)Memcpy(?!.*Async)|^(?!.*Enqueue).*Events?Wait$|QueueFinish"
)
"""Names of calls of CUDA, HIP and SYCL that wait for a device.

``hipMemcpyWithStream`` also waits, despite its name.
"""
_ALLOCATES = ("Malloc", "Free", "MallocAsync", "FreeAsync", "HostAlloc", "MallocHost", "FreeHost",
              "MemAlloc", "MemAlloc_v2", "MemFree", "MemFree_v2", "MemCreate", "MemRelease",
              "HostRegister", "HostUnregister")  # fmt: skip
_FIRST_USE_NS = 10_000_000
"""A call's least time in ns to be a first use. Others take microseconds; a context takes longer."""
_MOSTLY = 0.5
"""Share of an operator from which first uses make all of it one."""
_MOVES = re.compile("Memcpy|Memset|memcpy|memset")
_REQUEST = "Activity Buffer Request"
"""CUPTI takes memory for its records. A thread waits for milliseconds before a call."""
_WITHIN_A_DEVICE = "Device -> Device"
_WAITS_FOR_WORK = re.compile(
    r"(Simple)?Queue\.get \(.*\b(queue|multiprocessing/queues)\.py:\d+\)|"
    r"_?Connection(Base)?\.(recv|recv_bytes|poll) \(.*\bmultiprocessing/connection\.py:\d+\)|"
    r"_queue\.SimpleQueue\.get|(_?socket\.)+_accept|"
    r"select\.(select|(e?poll|devpoll)\.poll|kqueue\.control)"
)
"""Python calls that wait for work, as VizTracer names them."""
QUEUED, BLOCKED, LATE = "queued", "host blocked", "host late"
NOTHING, UNKNOWN_CAUSE = "nothing to do", "unknown"
KINDS = (BLOCKED, LATE, QUEUED, NOTHING, UNKNOWN_CAUSE)
"""Kinds of idle time, independent of what the host did."""

LAUNCHING, ELSEWHERE = "launching", "elsewhere on the host"
WAITING, STARTING = "waiting in the queue", "starting"
CAUSES = (
    RECORDING, COMPILING, CHECKPOINT, LOADING, COLLECTING, PAGEABLE, SYNCHRONISING, FIRST_USE,
    ALLOCATING, OPTIMIZER, LAUNCHING, ELSEWHERE, WAITING, STARTING, NOTHING, UNKNOWN_CAUSE,
)  # fmt: skip
"""Causes in order of precedence, causes before symptoms."""

PACE_NS = 100_000
"""Time from launch to launch below which the host does nothing but launch."""
_KIND = {name: place for place, name in enumerate(KINDS)}
_CAUSE = {name: place for place, name in enumerate(CAUSES)}
_BLOCK = 1 << 14
"""Number of gaps whose causes are found at a time; more take much memory."""
_SMALL = {"kind": np.int8, "cause": np.int8, "gap": np.int32, "thread": np.int32,
          "call": np.int32, "weight": np.int32}  # fmt: skip
"""Types of columns that hold small numbers; the others are 64 bits."""
_NEVER = int(np.iinfo(np.int64).max)
"""In place of the start of a gap that a trace does not have, in ns."""
_NO_WAITS = (*(np.zeros(0, np.int64) for _ in range(3)), np.zeros(0, bool))


@dataclass(frozen=True)
class Gaps:
    """Gaps in order of time; times in ns since the trace's base time.

    Attributes:
        start: When each begins: all earlier activities have ended.
        end: When it ends.
        before: Index in ``Launches.work`` of the activity that ended last before it; -1 for the
            first gap.
        after: Likewise the activity that ended it, the first of several; -1 for the last gap.
        launch_call: Index among the trace's spans of the call that launched that activity; -1 if
            there is none or none was recorded.
        called: When that call began, clipped to the gap. Without a call it is the gap's start, or
            the end for the last gap.
        launched: Likewise, when that call ended.
        in_flight: Mask of the gaps that end with an activity launched before the recording.
    """

    start: Numbers
    end: Numbers
    before: Numbers
    after: Numbers
    launch_call: Numbers
    called: Numbers
    launched: Numbers
    in_flight: NDArray[np.bool_]

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Gaps that end with an activity whose launch was not recorded."""
        known = (self.launch_call != UNKNOWN) | self.in_flight
        return np.asarray((self.after != EDGE) & ~known)

    @property
    def was_queued(self) -> NDArray[np.bool_]:
        """Gaps that end with an activity that was launched before they began."""
        known = self.launch_call != UNKNOWN
        return np.asarray((known & (self.launched <= self.start)) | self.in_flight)


def streams(trace: Trace, started: Launches) -> list[tuple[int, int]]:
    """Return the pairs of device and stream of all device activities."""
    columns = [trace.spans[name][started.work].tolist() for name in ("device", "stream")]
    return sorted(set(zip(*columns, strict=True)))


def gaps(
    trace: Trace,
    started: Launches,
    marked: Sequence[MarkedStep],
    device: int,
    stream: int | None = None,
) -> Gaps:
    """Return the gaps of a device over the marked steps and all of its activities.

    A device that ran work from before the recording has no gap then, although the trace shows
    nothing. A stream has one.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        marked: The steps, or one for the whole trace.
        device: The device.
        stream: A stream, to look at this stream only.
    """
    spans = trace.spans
    selected = spans["device"][started.work] == device
    if stream is not None:
        selected &= spans["stream"][started.work] == stream
    chosen = np.flatnonzero(selected)
    begins = spans["start"][started.work[chosen]]
    reached = np.maximum.accumulate(begins + spans["length"][started.work[chosen]])
    longest = np.concatenate([[True], reached[1:] > reached[:-1]])[: len(reached)]
    last = chosen[np.maximum.accumulate(np.where(longest, np.arange(len(chosen)), 0))]
    first, final = _window(marked, begins, reached)
    start, end = np.append(first, reached), np.append(begins, final)
    kept = end > start
    if stream is None:
        kept[:-1] &= ~held(trace, started)[chosen]
    before, after = np.append(EDGE, last)[kept], np.append(chosen, EDGE)[kept]
    return _launched(trace, started, start[kept], end[kept], before, after)


def _window(marked: Sequence[MarkedStep], begins: Numbers, reached: Numbers) -> tuple[int, int]:
    first = [step[1] for step in marked] + begins[:1].tolist()
    last = [step[1] + step[2] for step in marked] + reached[-1:].tolist()
    return min(first), max(last)


def _launched(
    trace: Trace, started: Launches, start: Numbers, end: Numbers, before: Numbers, after: Numbers
) -> Gaps:
    """Return gaps with the launches of the activities that ended them."""
    launch_call = np.append(started.call, UNKNOWN)[after]
    called, launched = start.copy(), start.copy()
    known = launch_call != UNKNOWN
    begin = trace.spans["start"][launch_call[known]]
    done = begin + trace.spans["length"][launch_call[known]]
    called[known] = np.clip(begin, start[known], end[known])
    launched[known] = np.clip(done, start[known], end[known])
    closing = after == EDGE
    called[closing] = launched[closing] = end[closing]
    flying = np.append(in_flight(trace, started), False)[after]
    return Gaps(start, end, before, after, launch_call, called, launched, flying)


def cut(start: Numbers, end: Numbers, times: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Cut spans at given times.

    Args:
        start: Starts of the spans.
        end: Their ends.
        times: Where to cut, in any order.

    Returns:
        Starts and ends of the pieces in the order of the spans, and the index of each one's span.
    """
    at = np.sort(times)
    at = at[np.append(np.ones(len(at[:1]), bool), at[1:] != at[:-1])]
    first = np.searchsorted(at, start, side="right")
    count = np.maximum(np.searchsorted(at, end, side="left") - first, 0) + 1
    of = np.repeat(np.arange(len(start)), count)
    number = np.arange(len(of)) - (np.cumsum(count) - count)[of]
    at, place = np.append(at, 0), first[of] + number
    begins = np.where(number == 0, start[of], at[place - 1])
    ends = np.where(number == count[of] - 1, end[of], at[place])
    return begins, ends, of


def cut_by_covers(
    start: Numbers, end: Numbers, covers: Sequence[Cover]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Cut spans where covers begin and end.

    Returns:
        Starts and ends of the pieces, the span of each, and the first cover around it; -1 for none.
    """
    if len(start):
        covers = [clipped(one, int(start.min()), int(end.max())) for one in covers]
    edges = [one for where in covers for one in where]
    begins, ends, of = cut(start, end, np.concatenate(edges) if edges else start[:0])
    found = np.full(len(begins), NONE, np.int64)
    for number, where in reversed(list(enumerate(covers))):
        found[inside(begins, where)] = number
    return begins, ends, of, found


@dataclass(frozen=True)
class BlockingCalls:
    """Calls of one thread that wait for a device; of nested calls only the outer one.

    Attributes:
        call: Indices among the trace's spans, in order of start.
        start: When each begins.
        end: When it ends.
        pageable: Mask of the calls that copy from or to memory that is not pinned.
    """

    call: Numbers
    start: Numbers
    end: Numbers
    pageable: NDArray[np.bool_]


class HostActivity:
    """Activity of the host's threads, computed once for each thread.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """

    def __init__(self, trace: Trace, started: Launches) -> None:
        self._trace = trace
        self._started = started
        self.busy = cache(self._busy)
        self.blocking = cache(self._blocking)
        self.causes = cache(self._causes)
        self._phase = cache(lambda phase: phase_spans(trace, phase))

    @cached_property
    def main(self) -> int:
        """The thread that marks the steps; -1 if they are not marked."""
        threads = self._trace.spans["thread"][step_marks(self._trace)]
        return int(np.bincount(threads).argmax()) if len(threads) else NONE

    def _on(self, thread: int, chosen: NDArray[np.bool_]) -> Cover:
        return self._trace.when(chosen & (self._trace.spans["thread"] == thread))

    @cached_property
    def _working(self) -> NDArray[np.bool_]:
        step = self._trace.named(is_step)
        return self._trace.category(OPERATORS, CALLS, FRAMES, LAUNCHES) & ~step

    def _busy(self, thread: int) -> Cover:
        """Return when a thread is in any operator, frame or runtime call of a device."""
        return self._on(thread, self._working)

    @cached_property
    def _waits(self) -> tuple[Numbers, NDArray[np.bool_]]:
        """The calls of all threads that wait for a device, and which of them for pageable memory.

        If the launched copy was recorded, it decides, not the name of the call.
        """
        trace, call, work = self._trace, self._started.call, self._started.work
        calls = trace.category(LAUNCHES)
        copies = trace.category(COPIES)[work] & (call != UNKNOWN)
        within = copies & trace.named(lambda name: _WITHIN_A_DEVICE in name)[work]
        pageable = copies & trace.named(lambda name: "Pageable" in name)[work]
        waits = calls & trace.named(lambda name: bool(_WAITS.search(name)))
        waits[call[within]] = False
        waits[call[pageable]] = True
        place = np.flatnonzero(waits)
        return place, np.isin(place, call[pageable])

    def _blocking(self, thread: int) -> BlockingCalls:
        """Return the calls of a thread that wait for a device."""
        place, pageable = self._waits
        spans = self._trace.spans
        selected = spans["thread"][place] == thread
        place, pageable = place[selected], pageable[selected]
        start, end = spans["start"][place], (spans["start"] + spans["length"])[place]
        before = np.maximum.accumulate(end)[:-1]
        start[1:] = np.maximum(start[1:], before)
        outer = end > start
        return BlockingCalls(place[outer], start[outer], end[outer], pageable[outer])

    @cached_property
    def _launch_periods(self) -> tuple[Numbers, Numbers]:
        """The launch calls, and the time from the start of the previous launch to their end."""
        spans = self._trace.spans
        call = distinct(self._started.call[self._started.call != UNKNOWN])
        ordered = call[np.argsort(spans["thread"][call], kind="stable")]
        start, thread = spans["start"][ordered], spans["thread"][ordered]
        pace = np.full(len(ordered), UNKNOWN, np.int64)
        pace[1:] = start[1:] + spans["length"][ordered][1:] - start[:-1]
        pace[1:][thread[1:] != thread[:-1]] = UNKNOWN
        return call, pace[np.argsort(ordered)]

    def launch_periods(self, calls: Numbers) -> Numbers:
        """Return the time from the start of the previous launch to the end of each call, in ns.

        It is -1 for the first launch of a thread, and for a call of -1.
        """
        known, pace = self._launch_periods
        given = calls != UNKNOWN
        result = np.full(len(calls), UNKNOWN, np.int64)
        result[given] = pace[np.searchsorted(known, calls[given])]
        return result

    @cached_property
    def _shared_causes(self) -> dict[str, Cover]:
        """Causes that delay all threads."""
        trace = self._trace
        return {
            COMPILING: trace.when(trace.named(lambda name: COMPILERS in name)),
            COLLECTING: trace.when(trace.category(COLLECTIONS)),
        }

    @cached_property
    def _recording(self) -> NDArray[np.bool_]:
        """Spans of the profiler itself."""
        return overhead(self._trace)

    @cached_property
    def _first_uses(self) -> NDArray[np.bool_]:
        return first_uses(self._trace) | warm_ups(self._trace)

    def first_uses(self, thread: int) -> Cover:
        """Return when a thread uses a device or a library for the first time."""
        return self._on(thread, self._first_uses)

    def _requests(self, thread: int) -> Cover:
        """Return when CUPTI took memory and the thread began no call.

        The trace does not tell which thread waited. A thread that began a call did not wait.
        """
        trace, spans = self._trace, self._trace.spans
        requests = trace.category(OVERHEADS) & trace.named(lambda name: name == _REQUEST)
        start, end = spans["start"], spans["start"] + spans["length"]
        calls = start[trace.category(LAUNCHES) & (spans["thread"] == thread)]
        began = np.searchsorted(calls, end[requests]) - np.searchsorted(calls, start[requests])
        requests[requests] = began == 0
        return trace.when(requests)

    def _causes(self, thread: int) -> dict[str, Cover]:
        """Return why and when a thread launches nothing, causes before symptoms."""
        calls, stops = self.blocking(thread), self._shared_causes
        allocates = self._trace.category(LAUNCHES) & self._trace.named(
            lambda name: name.endswith(_ALLOCATES)
        )
        return {
            RECORDING: united(self._on(thread, self._recording), self._requests(thread)),
            COMPILING: stops[COMPILING],
            CHECKPOINT: self._on(thread, self._phase(CHECKPOINT)),
            LOADING: self._on(thread, self._phase(LOADING)),
            COLLECTING: stops[COLLECTING],
            PAGEABLE: (calls.start[calls.pageable], calls.end[calls.pageable]),
            SYNCHRONISING: (calls.start[~calls.pageable], calls.end[~calls.pageable]),
            FIRST_USE: self.first_uses(thread),
            ALLOCATING: self._on(thread, allocates),
            OPTIMIZER: self._on(thread, self._phase(OPTIMIZER)),
        }


def first_uses(trace: Trace) -> NDArray[np.bool_]:
    """Return the long calls of a device's runtime that happen once.

    They create a context, or load a library or kernels, in the first operator of a name. Outside of
    operators, no other call of the same name is long.
    """
    spans, long = trace.spans, trace.category(LAUNCHES)
    long &= spans["length"] >= _FIRST_USE_NS
    long &= ~trace.named(lambda name: bool(_WAITS.search(name) or _MOVES.search(name)))
    found, call = np.zeros(len(long), bool), np.flatnonzero(long)
    if not len(call):
        return found
    span, place = _innermost(trace, call)
    first = np.zeros(len(span) + 1, bool)
    first[np.unique(spans["name"][span], return_index=True)[1]] = True
    alone = np.bincount(spans["name"][call])[spans["name"][call]] == 1
    found[call[np.where(place == ROOT, alone, first[place])]] = True
    return found


def warm_ups(trace: Trace) -> NDArray[np.bool_]:
    """Return the operators of which first uses are the most.

    The rest of their time also passes once: they load and set up a library between these calls.
    """
    found, call = np.zeros(len(trace.spans["start"]), bool), np.flatnonzero(first_uses(trace))
    if not len(call):
        return found
    span, place = _innermost(trace, call)
    inside = place != ROOT
    length = trace.spans["length"]
    times = np.bincount(place[inside], weights=length[call[inside]], minlength=len(span))
    found[span[times > _MOSTLY * length[span]]] = True
    return found


def _innermost(trace: Trace, call: Numbers) -> tuple[Numbers, Numbers]:
    """Return all operators, and the place among them of the innermost one around each call."""
    span = np.flatnonzero(trace.category(OPERATORS) & ~trace.named(is_step))
    parent = parents(*(trace.spans[name][span] for name in ("start", "length", "thread")))
    return span, innermost(trace, span, parent, call)


def waits_for_work(trace: Trace, calls: Calls) -> NDArray[np.bool_]:
    """Return the Python calls that wait for work or a request, and the calls inside them."""
    named = trace.named(
        lambda name: bool(_WAITS_FOR_WORK.fullmatch(name)) and not is_user_frame(name)
    )
    waits, inside = (trace.category(CALLS) & named)[calls.span].tolist(), list[bool]()
    for own, outer in zip(waits, calls.parent.tolist(), strict=True):
        inside.append(own or (outer != ROOT and inside[outer]))
    found = np.zeros(len(named), bool)
    found[calls.span] = inside
    return found


@dataclass(frozen=True)
class Idle:
    """Pieces of idle time in order of time, without overlap; times in ns.

    Attributes:
        start: When each begins.
        end: When it ends.
        kind: Indices in :data:`KINDS`.
        cause: Indices in :data:`CAUSES`.
        gap: Indices of their gaps.
        thread: The host thread that launches the next activity; -1 if unknown.
        call: Index among the trace's spans of the call that made the host wait for the device; -1
            if there is none.
        weight: How often a piece counts: more than once if steps overlap.
    """

    start: Numbers
    end: Numbers
    kind: Numbers
    cause: Numbers
    gap: Numbers
    thread: Numbers
    call: Numbers
    weight: Numbers

    @property
    def time(self) -> Numbers:
        """Duration of each piece times its weight, in ns."""
        return (self.end - self.start) * self.weight

    def of_cause(self, *causes: str) -> NDArray[np.bool_]:
        """Return which pieces have one of these causes."""
        return np.array([name in causes for name in CAUSES], bool)[self.cause]

    def by_cause(self) -> dict[str, int]:
        """Return the idle time of each cause, in ns. They add up to all idle time."""
        return _sums(CAUSES, self.cause, self.time)

    def by_kind(self) -> dict[str, int]:
        """Return the idle time of each kind, in ns. They add up to all idle time."""
        return _sums(KINDS, self.kind, self.time)

    def select(self, which: NDArray[np.bool_] | Numbers | slice) -> Idle:
        """Return some of the pieces."""
        return Idle(*(getattr(self, field.name)[which] for field in fields(self)))

    def cut_at(self, times: Numbers) -> Idle:
        """Return the same pieces, cut at given times."""
        start, end, of = cut(self.start, self.end, times)
        return replace(self.select(of), start=start, end=end)

    def within(self, steps: Sequence[MarkedStep]) -> Idle:
        """Return the pieces within steps, weighted by the number of steps around each."""
        begins = np.array(sorted(step[1] for step in steps), np.int64)
        ends = np.array(sorted(step[1] + step[2] for step in steps), np.int64)
        found = self.cut_at(np.concatenate([begins, ends]))
        open_ = np.searchsorted(begins, found.start, side="right")
        weight = open_ - np.searchsorted(ends, found.start, side="right")
        return replace(found, weight=found.weight * weight).select(weight > 0)


def _sums(names: Sequence[str], codes: Numbers, times: Numbers) -> dict[str, int]:
    found = np.zeros(len(names), np.int64)
    np.add.at(found, codes, times)
    return dict(zip(names, found.tolist(), strict=True))


def idle(
    trace: Trace,
    started: Launches,
    host: HostActivity,
    found: Gaps,
    recorded: Sequence[MarkedStep] = (),
) -> Idle:
    """Return the causes of gaps.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        host: What the host did.
        found: The gaps of a device or of a stream.
        recorded: The steps in which the host causes the gap before the first launch, and the one
            after the last while it does anything. Else there was nothing to do.
    """
    threads = np.append(trace.spans["thread"], NONE)
    first = [host.first_uses(one) for one in threads[found.launch_call[found.before == EDGE]]]
    pieces = _edges(_cut_at_launches(found), found, recorded, first)
    before = np.append(started.call, UNKNOWN)[found.before]
    launching = np.stack([threads[found.launch_call], threads[before]], axis=1).astype(np.int32)
    pace = host.launch_periods(found.launch_call)
    fast = (pace != NONE) & (pace < PACE_NS)
    at = np.searchsorted(pieces.gap, np.arange(0, max(1, len(found.start)), _BLOCK)).tolist()
    blocks = (pieces.select(slice(*ends)) for ends in itertools.pairwise([*at, None]))
    return _in_order(
        [_of_the_host(_with_threads(one, launching, host), host, found, fast) for one in blocks]
    )


def _cut_at_launches(found: Gaps) -> Idle:
    """Return the parts of gaps before and after the launch of the next activity."""
    late = np.full(len(found.start), NONE, np.int8)
    times = np.stack([found.start, found.launched, found.end])
    start, end = times[:-1].ravel(order="F"), times[1:].ravel(order="F")
    gap = np.repeat(np.arange(len(found.start), dtype=np.int32), 2)
    queued = np.where(found.unknown, _KIND[UNKNOWN_CAUSE], _KIND[QUEUED])
    kind = np.stack([late, queued.astype(np.int8)])
    waiting = np.where(found.was_queued, _CAUSE[WAITING], _CAUSE[STARTING])
    waiting = np.where(found.unknown, _CAUSE[UNKNOWN_CAUSE], waiting)
    cause = np.stack([late, waiting.astype(np.int8)])
    one = np.ones(len(start), np.int32)
    pieces = Idle(start, end, kind.ravel(order="F"), cause.ravel(order="F"), gap, -one, -one, one)
    return pieces.select(end > start)


def _edges(
    pieces: Idle, found: Gaps, recorded: Sequence[MarkedStep], first_uses: Sequence[Cover]
) -> Idle:
    """Mark idle time with nothing to do: before the first launch and after the last.

    Before the first launch, the host may use the device or a library for the first time. Then the
    device waits for that.
    """
    begins = np.array([step[1] for step in recorded], np.int64)
    where = cover(begins, begins + np.array([step[2] for step in recorded], np.int64))
    edges = [*where, *(edge for cover in first_uses for edge in cover)]
    outer = ((found.before == EDGE) | (found.after == EDGE))[pieces.gap] & (pieces.kind == NONE)
    result = pieces.select(outer)
    result = result.cut_at(np.concatenate([*edges, found.called[found.before == EDGE]]))
    nothing = (found.after == EDGE)[result.gap] | (result.start < found.called[result.gap])
    for apart in (where, *first_uses):
        nothing &= ~inside(result.start, apart)
    result = replace(
        result,
        kind=np.where(nothing, _KIND[NOTHING], result.kind),
        cause=np.where(nothing, _CAUSE[NOTHING], result.cause),
    )
    return _in_order([pieces.select(~outer), result])


def _with_threads(pieces: Idle, launching: Numbers, host: HostActivity) -> Idle:
    """Set the host thread of each piece: the one that launches next, if it is busy.

    Else it is the thread that launched the activity before, else the thread that marks the steps.

    Args:
        pieces: The pieces.
        launching: For each gap the thread that launches next, and the one that launched before.
        host: What the host did.
    """
    late, pairs = pieces.kind == NONE, launching[pieces.gap]
    parts = [pieces.select(~late)]
    for pair in np.unique(pairs[late], axis=0).tolist():
        subset = pieces.select(late & (pairs == pair).all(axis=1))
        likely = [thread for thread in dict.fromkeys([*pair, host.main]) if thread != NONE]
        busy = [host.busy(thread) for thread in likely] if len(likely) > 1 else []
        start, end, of, first = cut_by_covers(subset.start, subset.end, busy)
        otherwise = host.main if host.main != NONE else [*likely, NONE][0]
        thread = np.array([*likely, otherwise], np.int64)[first]
        parts.append(replace(subset.select(of), start=start, end=end, thread=thread))
    return _in_order(parts)


def _in_order(parts: Sequence[Idle]) -> Idle:
    start = np.concatenate([part.start for part in parts])
    order = np.argsort(start, kind="stable")
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Idle)}
    return Idle(
        **{
            name: np.concatenate(column, dtype=_SMALL.get(name, np.int64))[order]
            for name, column in columns.items()
        }
    )


def _of_the_host(pieces: Idle, host: HostActivity, found: Gaps, fast: NDArray[np.bool_]) -> Idle:
    """Set the causes of the time in which the device waited for a launch.

    Args:
        pieces: The pieces.
        host: What the host did.
        found: Their gaps.
        fast: Mask of the gaps before which the host does nothing but launch.
    """
    on_host = pieces.kind == NONE
    after = _after_waits(pieces.select(on_host), host, found)
    parts, last = [pieces.select(~on_host)], found.start[found.after == EDGE].min(initial=_NEVER)
    for thread in distinct(pieces.thread[on_host]).tolist():
        subset = pieces.select(on_host & (pieces.thread == thread))
        subset = subset.cut_at(np.concatenate(clipped(host.busy(thread), int(last), _NEVER)))
        doing, calls = host.causes(thread), host.blocking(thread)
        layers = [*doing.items(), *((name, (after[name].start, after[name].end)) for name in after)]
        layers.sort(key=lambda layer: _CAUSE[layer[0]])  # stable: calls stay first within one cause
        start, end, of, first = cut_by_covers(subset.start, subset.end, [one for _, one in layers])
        subset = replace(subset.select(of), start=start, end=end)
        names = np.array([*(_CAUSE[name] for name, _ in layers), NONE], np.int64)[first]
        rest = np.where(fast[subset.gap], _CAUSE[LAUNCHING], _CAUSE[ELSEWHERE])
        ended = (names == NONE) & (found.after == EDGE)[subset.gap]
        ended &= ~inside(start, host.busy(thread))
        call = np.append(calls.call, UNKNOWN)[span_at(start, calls.start, calls.end)]
        kind = np.where(call == UNKNOWN, _KIND[LATE], _KIND[BLOCKED])
        for name, one in after.items():
            late = (kind == _KIND[LATE]) & (names == _CAUSE[name])
            waited = np.append(one.call, UNKNOWN)[span_at(start, one.start, one.end)]
            call = np.where(late, waited, call)
        kind = np.where(ended, _KIND[NOTHING], kind)
        cause = np.where(ended, _CAUSE[NOTHING], np.where(names == NONE, rest, names))
        parts.append(replace(subset, kind=kind, cause=cause, call=call))
    return _in_order(parts)


def _after_waits(pieces: Idle, host: HostActivity, found: Gaps) -> dict[str, BlockingCalls]:
    """Return the part of gaps that comes from a waiting call that left the device without work.

    Without the call, the host would have been ahead by the time the call had lasted when the gap
    began. The call makes a gap longer by at most this time.
    """
    first = np.append(np.ones(len(pieces.gap[:1]), bool), pieces.gap[1:] != pieces.gap[:-1])
    first &= (pieces.start == found.start[pieces.gap]) & (found.before[pieces.gap] != EDGE)
    result = []
    for thread in distinct(pieces.thread[first]).tolist():
        calls, gap = host.blocking(thread), pieces.gap[first & (pieces.thread == thread)]
        begin = found.start[gap]
        place = np.searchsorted(calls.start, begin, side="left") - 1
        gap, begin, place = (one[place >= 0] for one in (gap, begin, place))
        open_ = calls.end[place] >= begin
        gap, begin, place = (one[open_] for one in (gap, begin, place))
        until = np.minimum(begin + calls.end[place] - calls.start[place], found.launched[gap])
        result.append((calls.call[place], begin, until, calls.pageable[place]))
    call, start, end, pageable = (
        np.concatenate(column) for column in zip(*result, _NO_WAITS, strict=True)
    )
    order = np.argsort(start, kind="stable")
    order = order[(end > start)[order]]
    named = {PAGEABLE: order[pageable[order]], SYNCHRONISING: order[~pageable[order]]}
    return {
        name: BlockingCalls(call[some], start[some], end[some], pageable[some])
        for name, some in named.items()
    }

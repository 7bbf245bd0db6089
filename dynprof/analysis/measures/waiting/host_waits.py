"""What keeps a thread of the host from launching, and when it waits for work."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.code.user_code import is_user_frame
from dynprof.analysis.measures.timeline.breakdown import COLLECTING, COMPILERS, COMPILING, RECORDING
from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost
from dynprof.analysis.measures.timeline.operators import is_step, step_marks
from dynprof.analysis.measures.timeline.overhead import overhead
from dynprof.analysis.measures.timeline.phases import CHECKPOINT, LOADING, OPTIMIZER, phase_spans
from dynprof.analysis.reading.events import (
    CALLS,
    COLLECTIONS,
    COPIES,
    FRAMES,
    LAUNCHES,
    OPERATORS,
    OVERHEADS,
)
from dynprof.analysis.reading.spans import ROOT, distinct, parents, united

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Calls
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]


PAGEABLE, SYNCHRONISING = "copying pageable memory", "synchronising"
ALLOCATING = "allocating device memory"
FIRST_USE = "first use of the device or a library"
NO_THREAD = -1
"""In place of a thread, if it is unknown."""

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
        return int(np.bincount(threads).argmax()) if len(threads) else NO_THREAD

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

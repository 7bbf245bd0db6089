"""The critical path of steps: the chain of work that determined when each step ended.

One path leads through the whole capture, from the start of the first step until all work of the
last step is done. A step's part of it is from the end of the previous step, on host and devices, to
its own end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.critical_path.graph import HOST, NEVER, SLOTS, WAIT, path_graph
from dynprof.analysis.measures.critical_path.parts import (
    AT_HOST,
    COMMUNICATING,
    COMPUTING,
    COPYING,
    PARTS,
    PHASES,
    RETURNING,
    WAITING,
    path_times,
    segments,
    work_parts,
)
from dynprof.analysis.measures.critical_path.waits import Waits
from dynprof.analysis.measures.critical_path.work import blocking_copies, work_between
from dynprof.analysis.measures.timeline.launches import UNKNOWN, Launches
from dynprof.analysis.measures.timeline.operators import step_marks
from dynprof.analysis.measures.timeline.phases import LOADING, where_phase
from dynprof.analysis.measures.timeline.steps import job_ends
from dynprof.analysis.reading.events import (
    LAUNCHES,
    ON_DEVICE,
    OPERATORS,
    SYNCHRONISATIONS,
)
from dynprof.analysis.reading.intervals import covered_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path.graph import Graph
    from dynprof.analysis.measures.critical_path.parts import PathTimes, Segments
    from dynprof.analysis.measures.critical_path.work import Numbers, Work
    from dynprof.analysis.measures.timeline.operators import Calls
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.trace import Trace

    Scenario = tuple[str, int, Numbers, Numbers]

_LATEST = 1 << 62
"""Limit of times, in ns, so that sums of them still fit into 64 bits."""
MAX_KERNELS = 5
"""Number of kernels, by their time on the path, for which the step without them is computed."""
ALL_HOST, ALL_KERNELS, ALL_COPIES = "the host's work", "all kernels that compute", "all copies"
ALL_COMMUNICATION, ALL_LOADING = "communication", "data loading"
ALL_DELAYS, ALL_WAITS = "delays of the device", "the host's waits for the device"
ALL_BLOCKING_COPIES = "copies that the host waits for"
SCENARIOS = (ALL_HOST, ALL_KERNELS, ALL_COPIES, ALL_COMMUNICATION, ALL_LOADING, ALL_DELAYS,
             ALL_WAITS, ALL_BLOCKING_COPIES)  # fmt: skip
"""What may cost nothing, apart from the kernels one by one."""


@dataclass(frozen=True)
class WhatIf:
    """How long a step would take if something cost nothing and all else stayed the same.

    Attributes:
        what: A part of the path, or the name of a kernel.
        on_path: Its time on the path in the mean step, in ns.
        step: The minimum duration of the mean step without it, in ns.
    """

    what: str
    on_path: float
    step: float


@dataclass(frozen=True)
class CriticalPath:
    """The longest path through the steps of a capture; times in ns.

    Attributes:
        steps: The marked steps.
        begin: When the path begins; if the device is behind, when it was done with work from before
            the recording.
        ends: When all work of each step was done.
        segments: The path as spans of time.
        times: The parts of the path, by step.
        what_ifs: How long a step would take if something cost nothing, the shortest first.
        on_host: Whether no device worked: then the path is the steps' own thread.
        waits_recorded: Whether the trace records the waits between streams, or has at most one.
    """

    steps: list[MarkedStep]
    begin: int
    ends: Numbers
    segments: Segments
    times: PathTimes
    what_ifs: list[WhatIf]
    on_host: bool
    waits_recorded: bool

    @property
    def lengths(self) -> Numbers:
        """How long each step takes on the path."""
        return np.diff(self.ends, prepend=self.begin)

    @property
    def length(self) -> float:
        """How long the mean step takes."""
        return float(self.lengths.mean()) if len(self.ends) else 0.0

    @property
    def is_unknown(self) -> bool:
        """Whether most of the path is an unknown wait, so that it bounds no saving."""
        return self.parts()[PARTS[WAITING]] > self.length / 2

    def parts(self, step: int | None = None) -> dict[str, float]:
        """Return how long the path is in each of :data:`PARTS`, in one step or in the mean."""
        times = self.times
        chosen = np.ones(len(times.time), bool) if step is None else times.step == step
        count = max(1, len(self.ends)) if step is None else 1
        sums = np.zeros(len(PARTS), np.int64)
        np.add.at(sums, times.part[chosen], times.time[chosen])
        return dict(zip(PARTS, (sums / count).tolist(), strict=True))


def critical_path(
    trace: Trace, marked: list[MarkedStep], found: Launches, calls: Calls, *, behind: bool = False
) -> CriticalPath | None:
    """Return the critical path of the steps; None if their times are zero or out of range.

    Args:
        trace: The trace.
        marked: Its steps.
        found: Device activities and their launches.
        calls: The operators and Python frames of the host.
        behind: Whether the device is behind the host. Then work from before the recording is no
            part of the path.
    """
    begin, end = _span(marked)
    if end <= begin or not -_LATEST < begin < end < _LATEST:
        return None
    work = work_between(trace, found, begin, end)
    main = main_thread(trace)
    waits = Waits(trace, work, main, begin, end)
    finished = _host_end(trace, main, end) if len(work.place) and marked[0][0] is None else end
    graph = path_graph(trace, work, waits, main, (begin, finished))
    ends = _ends(marked, work, int(graph.end.max()))
    nodes = graph.path()
    path = segments(trace, work, graph, nodes)
    since = _earlier_until(work, graph, nodes) if behind else begin
    nodes = nodes[graph.end[nodes] > since]
    ends = np.maximum(ends, since)
    linked = np.array([main, *{one.thread for one in waits.for_backward}], np.int64)
    times = path_times(trace, calls, path.since(since), ends, linked)
    return CriticalPath(
        steps=marked,
        begin=since,
        ends=ends,
        segments=path.since(since),
        times=times,
        what_ifs=_what_ifs(
            _without_all(trace, work, graph, nodes, times, _host_work(trace, calls, graph, linked)),
            work,
            graph,
            len(ends),
            since - begin,
        ),
        on_host=not len(work.place),
        waits_recorded=len(work.streams) < 2 or bool(trace.category(SYNCHRONISATIONS).any()),
    )


def _span(marked: list[MarkedStep]) -> tuple[int, int]:
    """Return the start of the first step and the end of the last on the host."""
    ends = [since + length for _, since, length in marked]
    return min((since for _, since, _ in marked), default=0), max(ends, default=0)


def _host_end(trace: Trace, thread: int, end: int) -> int:
    """Return when a thread finished, if no step is marked; at most ``end``."""
    jobs, ends = job_ends(trace)
    chosen = jobs & (trace.spans["thread"] == thread) & ~trace.category(ON_DEVICE)
    return min(int(ends[chosen].max(initial=-_LATEST)), end)


def step_threads(trace: Trace) -> Numbers:
    """Return the threads that mark steps; else the main thread.

    Several threads mark steps in a server, where each has steps of its own.
    """
    found: Numbers = np.unique(trace.spans["thread"][step_marks(trace)])
    return found if len(found) else np.array([main_thread(trace)], np.int64)


def main_thread(trace: Trace) -> int:
    """Return the thread of the steps, else the first that does anything; -1 if none does."""
    for chosen in (step_marks(trace), trace.category(OPERATORS), trace.category(LAUNCHES)):
        if chosen.any():
            return int(trace.spans["thread"][chosen.argmax()])
    return UNKNOWN


def _ends(marked: list[MarkedStep], work: Work, last: int) -> Numbers:
    """Return when all work of each step was done, on host and devices."""
    begins = np.array([since for _, since, _ in marked], np.int64)
    ends = np.array([since + length for _, since, length in marked], np.int64)
    step = np.searchsorted(begins, work.launched, side="right") - 1
    of_steps = ~work.in_flight
    np.maximum.at(ends, np.maximum(step, 0)[of_steps], work.end[of_steps])
    ends = np.maximum.accumulate(ends)
    ends[-1] = last
    return ends


def _earlier_until(work: Work, graph: Graph, path: Numbers) -> int:
    """Return when the path leaves work from before the recording; its begin if it has none."""
    done = graph.work[path]
    flying, held = (np.append(one, False)[done] for one in (work.in_flight, work.held))
    until = np.where(flying, graph.end[path], np.where(held, graph.begin[path], graph.end[0]))
    return int(until.max(initial=graph.end[0]))


def _host_work(trace: Trace, calls: Calls, graph: Graph, linked: Numbers) -> Numbers:
    """Return how long the host works on each edge.

    What other threads wait for is unknown, so they work only within operators.
    """
    host, since = graph.host.copy(), graph.end[graph.before]
    chosen = np.zeros(len(trace.spans["start"]), bool)
    chosen[calls.span] = True
    for thread in np.setdiff1d(graph.thread, [*linked, UNKNOWN]).tolist():
        there = graph.thread == thread
        where = trace.when(chosen & (trace.spans["thread"] == thread))
        begin = since[there]
        host[there] = covered_until(where, begin + host[there]) - covered_until(where, begin)
    return host


def _what_ifs(
    scenarios: Iterator[Scenario], work: Work, graph: Graph, steps: int, earlier: int
) -> list[WhatIf]:
    """Return how long a step would take without each thing that is on the path.

    Without the time of earlier work that precedes the path, but at least as long as on the host.
    """
    whole = int(graph.end.max() - graph.end[0])
    found, flying = list[WhatIf](), np.append(work.in_flight, np.False_)[graph.work]
    before = np.append(work.held | work.in_flight, np.False_)[graph.work]
    held_back = _prompt(graph, np.where(before, graph.late, 0))
    for what, on_path, own, delay in scenarios:
        if on_path:
            if earlier:
                alone = graph.longest(0 * own, delay - held_back)
                own, delay = np.where(flying, graph.own, own), np.where(flying, graph.delay, delay)
                longest = max(graph.longest(own, delay) - earlier, alone)
            else:
                longest = graph.longest(own, delay)
            found.append(WhatIf(what, on_path / steps, longest / steps))
    return sorted(found, key=lambda one: (one.step, one.what)) if whole else []


def _without_all(
    trace: Trace, work: Work, graph: Graph, path: Numbers, times: PathTimes, host: Numbers
) -> Iterator[Scenario]:
    """Yield what costs nothing, its time on the path, and the other times of nodes and edges."""
    if len(work.place):  # without a device the host's work is everything
        free = _without(graph, host + graph.calling)
        yield ALL_HOST, _on_path(times, AT_HOST), graph.own, free
        yield from _without_waits(trace, work, graph, path, times)
    yield from _without_work(trace, work, graph, times)


def _without_waits(
    trace: Trace, work: Work, graph: Graph, path: Numbers, times: PathTimes
) -> Iterator[Scenario]:
    """Yield the waits of host and devices, as :func:`_without_work` does."""
    waits = (graph.work == UNKNOWN) & (graph.delay[WAIT] > NEVER)
    yield ALL_WAITS, _on_path(times, RETURNING), graph.own, _unawaited(graph, waits)
    blocking = np.append(blocking_copies(trace, Launches(work.place, work.call)), np.False_)
    copies, awaited = blocking[graph.work], blocking[graph.work[graph.before[WAIT]]]
    own, delay = np.where(copies, 0, graph.own), _unawaited(graph, waits & awaited)
    yield ALL_BLOCKING_COPIES, int(graph.own[path][copies[path]].sum()), own, delay
    late = np.where((work.held | work.in_flight)[graph.work], 0, graph.late)
    yield ALL_DELAYS, int(late[path].sum()), graph.own, graph.delay - _prompt(graph, late)


def _prompt(graph: Graph, late: Numbers) -> Numbers:
    """Return by how much each edge is shorter if activities begin as soon as they can."""
    return np.where(np.arange(SLOTS)[:, None] == graph.binding, late, 0)


def _unawaited(graph: Graph, waits: NDArray[np.bool_]) -> Numbers:
    """Return how long each edge takes if the host does not wait for devices at some nodes."""
    delay, alone = graph.delay.copy(), waits & (graph.delay[HOST] > NEVER)
    delay[WAIT, alone] = NEVER
    delay[HOST, alone] = graph.host[HOST, alone]
    return delay


def _on_path(times: PathTimes, part: int) -> int:
    return int(times.time[times.part == part].sum())


def _without_work(trace: Trace, work: Work, graph: Graph, times: PathTimes) -> Iterator[Scenario]:
    """Yield kinds of work, and the longest kernels, as :func:`_without_all` does."""
    done = graph.work != UNKNOWN
    part, name = np.full(len(done), UNKNOWN), np.full(len(done), UNKNOWN)
    part[done] = work_parts(trace, work)[graph.work[done]]
    name[done] = trace.spans["name"][work.place[graph.work[done]]]
    loading = times.time[times.phase == PHASES.index(LOADING)].sum()
    if loading:
        since = graph.end[graph.before]
        cover = where_phase(trace, LOADING)
        inside = covered_until(cover, since + graph.host) - covered_until(cover, since)
        yield ALL_LOADING, int(loading), graph.own, _without(graph, inside)
    for what, kind in (
        (ALL_KERNELS, COMPUTING), (ALL_COMMUNICATION, COMMUNICATING), (ALL_COPIES, COPYING)
    ):  # fmt: skip
        yield what, _on_path(times, kind), np.where(part == kind, 0, graph.own), graph.delay
    kernels = times.part == COMPUTING
    sums = np.bincount(times.name[kernels], times.time[kernels], minlength=1).astype(np.int64)
    for code in np.argsort(-sums, kind="stable")[:MAX_KERNELS].tolist():
        own = np.where((name == code) & (part == COMPUTING), 0, graph.own)
        yield trace.tables["name"][code], int(sums[code]), own, graph.delay


def _without(graph: Graph, free: Numbers) -> Numbers:
    """Return how long each edge takes without some of the host's work."""
    return np.where(free > 0, graph.delay - free, graph.delay)

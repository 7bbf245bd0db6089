"""The critical path of steps: the chain of work that determined when each step ended.

One path leads through the whole capture, from the start of the first step until all work of the
last step is done. A step's part of it is from the end of the previous step, on host and devices, to
its own end.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.critical_path_graph import (
    HOST,
    NEVER,
    SLOTS,
    WAIT,
    Waits,
    activities_between,
    blocking_copies,
    dependency_graph,
    span_of,
)
from dynprof.analysis.measures.timeline.launches import UNKNOWN, Launches
from dynprof.analysis.measures.timeline.operators import step_marks
from dynprof.analysis.measures.timeline.phase_times import LOADING, PRECEDENCE, REST, where_phase
from dynprof.analysis.measures.timeline.steps import job_ends
from dynprof.analysis.reading.events import (
    COPIES,
    LAUNCHES,
    MEMSETS,
    ON_DEVICE,
    OPERATORS,
    SYNCHRONISATIONS,
)
from dynprof.analysis.reading.spans import ROOT, cover, covered_until, distinct, inside, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path_graph import DeviceActivities, Graph, Numbers
    from dynprof.analysis.measures.timeline.operators import Calls
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Chosen = NDArray[np.bool_]

_LATEST = 1 << 62
"""Limit of times, in ns, so that sums of them still fit into 64 bits."""
_MIN_UNLINKED = 0.05
"""Share of a path from which work that nothing leads to makes the path unknown."""
MAX_KERNELS = 5
"""Number of kernels, by their time on the path, for which the step without them is computed."""
ALL_HOST, ALL_KERNELS, ALL_COPIES = "the host's work", "all kernels that compute", "all copies"
ALL_COMMUNICATION, ALL_LOADING = "communication", "data loading"
ALL_DELAYS, ALL_WAITS = "delays of the device", "the host's waits for the device"
ALL_BLOCKING_COPIES = "copies that the host waits for"
"""What may cost nothing, apart from the kernels one by one."""
PARTS = (
    "host", "launches", "kernels", "communication", "copies", "between kernels",
    "return to the host", "unknown wait", "earlier work",
)  # fmt: skip
"""The parts of a path."""
(
    AT_HOST, LAUNCHING, COMPUTING, COMMUNICATING, COPYING, BETWEEN, RETURNING, WAITING, EARLIER,
) = range(9)  # fmt: skip
PHASES = (*PRECEDENCE, REST)
"""Phases of the host, in order of precedence where they overlap."""
MAX_START_DELAY_NS = 10_000
"""Longest usual delay before a device starts ready work; a longer one has an unknown reason."""


@dataclass(frozen=True)
class Removal:
    """What costs nothing in a question to the graph; nothing by default.

    Masks are over the spans of the trace.

    Attributes:
        work: Mask of the device activities that take no time.
        late: Mask of the device activities that begin as soon as they can.
        waits: Mask of the calls that do not wait for a device, and of the device activities that no
            call waits for.
        host: When the host does nothing, by thread.
    """

    work: Chosen | None = None
    late: Chosen | None = None
    waits: Chosen | None = None
    host: Mapping[int, Cover] = field(default_factory=dict)


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
        unlinked: How long streams worked in the mean step of which the trace has no launch at all,
            although it has those of others. Nothing leads to them.
    """

    steps: list[MarkedStep]
    begin: int
    ends: Numbers
    segments: Segments
    times: PathTimes
    what_ifs: list[WhatIf]
    on_host: bool
    waits_recorded: bool
    unlinked: float

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
        """Whether most of the path is an unknown wait, or leads past much of the devices' work.

        Then it bounds no saving.
        """
        return self.leaves_out or self.parts()[PARTS[WAITING]] > self.length / 2

    @property
    def leaves_out(self) -> bool:
        """Whether it leads past streams that work for a large part of a step."""
        return self.unlinked >= _MIN_UNLINKED * self.length > 0

    def parts(self, step: int | None = None) -> dict[str, float]:
        """Return how long the path is in each of :data:`PARTS`, in one step or in the mean."""
        times = self.times
        chosen = np.ones(len(times.time), bool) if step is None else times.step == step
        count = max(1, len(self.ends)) if step is None else 1
        sums = np.zeros(len(PARTS), np.int64)
        np.add.at(sums, times.part[chosen], times.time[chosen])
        return dict(zip(PARTS, (sums / count).tolist(), strict=True))


class Dependencies:
    """What device activities and the host wait for in the steps of a capture.

    Args:
        trace: The trace.
        marked: Its steps.
        found: Device activities and their launches.
        span: Start and end of the steps on the host, in ns.
        behind: Whether the device is behind the host. Then work from before the recording is no
            part of the path.

    Attributes:
        work: Device activities.
        graph: Their dependencies.
        begin: When the longest path begins.
        nodes: The nodes of the longest path.
        linked: The threads of the host whose waits are known.
        steps: How many steps there are.
        after: How long after the end of the steps on the host all their work is done, in ns.
    """

    def __init__(
        self,
        trace: Trace,
        marked: list[MarkedStep],
        found: Launches,
        span: tuple[int, int],
        *,
        behind: bool = False,
    ) -> None:
        begin, end = span
        self._trace, self.steps = trace, len(marked)
        self.work = activities_between(trace, found, marked)
        main = main_thread(trace)
        waits = Waits(trace, self.work, main, begin, end)
        if len(self.work.place) and marked[0][0] is None:
            end = _host_end(trace, main, end)
        self.graph = dependency_graph(trace, self.work, waits, main, (begin, end))
        self.after = max(0, int(self.graph.end.max()) - span[1])
        nodes = self.graph.path()
        self.begin = self._earlier_until(nodes) if behind else int(self.graph.end[0])
        self.nodes = nodes[self.graph.end[nodes] > self.begin]
        self.linked = np.array([main, *{one.thread for one in waits.for_backward}], np.int64)

    def step(self, removal: Removal) -> float:
        """Return the minimum duration of the mean step without something, in ns.

        Earlier work that precedes the path stays. A step takes at least as long as on the host.
        """
        graph, earlier = self.graph, self.begin - int(self.graph.end[0])
        own, delay = self._times(removal)
        if not earlier:
            return graph.longest(own, delay) / self.steps
        alone = graph.longest(0 * own, delay - self._prompt(self._is_earlier))
        flying = np.append(self.work.in_flight, False)[graph.work]
        own, delay = np.where(flying, graph.own, own), np.where(flying, graph.delay, delay)
        return max(graph.longest(own, delay) - earlier, alone) / self.steps

    def saved(self, removal: Removal) -> float:
        """Return how much shorter the mean step would be without something, in ns."""
        whole = int(self.graph.end.max()) - self.begin
        return whole / self.steps - self.step(removal)

    def on_path(self, removal: Removal) -> int:
        """Return how long something lasts on the longest path, in ns; waits do not count."""
        own, delay = self._times(replace(removal, waits=None))
        bound = self.graph.binding[self.nodes], self.nodes
        return int(
            (self.graph.own - own)[self.nodes].sum() + (self.graph.delay - delay)[bound].sum()
        )

    def of_work(self, chosen: Chosen) -> Chosen:
        """Return the mask over the trace's spans of some of :attr:`work`."""
        found = np.zeros(len(self._trace.spans["start"]), bool)
        found[self.work.place[chosen]] = True
        return found

    def host(self, calls: Calls, waits: Cover) -> dict[int, Cover]:
        """Return when the host works, by thread, apart from when it waits.

        On a thread whose waits are not known, that is inside its operators and frames.
        """
        first, last = self.graph.end[:1], self.graph.end.max(keepdims=True)
        found = dict.fromkeys(self.threads, (first, last))
        for thread in found.keys() - set(self.linked.tolist()):
            changes, name = innermost_calls(self._trace, calls, thread)
            inside = np.flatnonzero(name != UNKNOWN)
            found[thread] = cover(changes[inside], np.append(changes, last)[inside + 1])
        return {thread: without(where, waits) for thread, where in found.items()}

    @property
    def threads(self) -> list[int]:
        """The threads of the host."""
        found: list[int] = distinct(self.graph.thread[self.graph.thread != UNKNOWN]).tolist()
        return found

    def _times(self, removal: Removal) -> tuple[Numbers, Numbers]:
        """Return how long each node and each edge take without something."""
        graph = self.graph
        own, delay = graph.own, graph.delay
        if removal.work is not None:
            own = np.where(self._nodes_of(removal.work), 0, own)
        if removal.late is not None:
            delay = delay - self._prompt(self._nodes_of(removal.late) & ~self._is_earlier)
        if removal.waits is not None:
            delay = self._unawaited(delay, removal.waits)
        if removal.host:
            delay = delay - self._free(removal.host)
        return own, delay

    @property
    def _is_earlier(self) -> Chosen:
        """The nodes of work from before the recording, and of what began late because of it."""
        return np.append(self.work.in_flight | self.work.held, False)[self.graph.work]

    def _earlier_until(self, path: Numbers) -> int:
        """Return when a path leaves work from before the recording; its start if it has none."""
        graph, done = self.graph, self.graph.work[path]
        flying, held = (
            np.append(one, False)[done] for one in (self.work.in_flight, self.work.held)
        )
        until = np.where(flying, graph.end[path], np.where(held, graph.begin[path], graph.end[0]))
        return int(until.max(initial=graph.end[0]))

    def _prompt(self, chosen: Chosen) -> Numbers:
        """Return by how much each edge is shorter if some nodes begin as soon as they can."""
        late = np.where(chosen, self.graph.late, 0)
        return np.where(np.arange(SLOTS)[:, None] == self.graph.binding, late, 0)

    def _nodes_of(self, chosen: Chosen) -> Chosen:
        """Return the nodes of some device activities."""
        return np.append(chosen[self.work.place], False)[self.graph.work]

    def _free(self, host: Mapping[int, Cover]) -> Numbers:
        """Return how long the host works on each edge at some times."""
        graph, found = self.graph, np.zeros_like(self.graph.host)
        since = graph.end[graph.before]
        until = since + graph.host
        launched = until[HOST] + self.work.shortest_launch
        for thread, where in host.items():
            here = graph.thread == thread
            found[here] += covered_until(where, until[here]) - covered_until(where, since[here])
            begin, end = launched[here[HOST]], (launched + graph.calling)[here[HOST]]
            found[HOST, here[HOST]] += covered_until(where, end) - covered_until(where, begin)
        return found

    def _unawaited(self, delay: Numbers, waits: Chosen) -> Numbers:
        """Return how long each edge takes if the host does not wait for devices at some nodes."""
        graph, delay = self.graph, delay.copy()
        alone = np.append(waits, False)[graph.call] | self._nodes_of(waits)[graph.before[WAIT]]
        alone &= (graph.work == UNKNOWN) & (graph.delay[WAIT] > NEVER) & (graph.delay[HOST] > NEVER)
        delay[WAIT, alone] = NEVER
        delay[HOST, alone] = graph.host[HOST, alone]
        return delay


def dependencies(
    trace: Trace, marked: list[MarkedStep], found: Launches, *, behind: bool = False
) -> Dependencies | None:
    """Return what things wait for in the steps; None if their times are zero or out of range.

    Args:
        trace: The trace.
        marked: Its steps.
        found: Device activities and their launches.
        behind: Whether the device is behind the host. Then work from before the recording is no
            part of the path.
    """
    begin, end = span_of(marked)
    if end <= begin or not -_LATEST < begin < end < _LATEST:
        return None
    return Dependencies(trace, marked, found, (begin, end), behind=behind)


def critical_path(
    trace: Trace,
    marked: list[MarkedStep],
    found: Launches,
    calls: Calls,
    *,
    behind: bool = False,
    waits: Cover | None = None,
) -> CriticalPath | None:
    """Return the critical path of the steps; None if their times are zero or out of range.

    Args:
        trace: The trace.
        marked: Its steps.
        found: Device activities and their launches.
        calls: The operators and Python frames of the host.
        behind: As in :func:`dependencies`.
        waits: When the host waits for work from before the recording, though no call tells it.
    """
    if waits is None:
        waits = np.zeros(0, np.int64), np.zeros(0, np.int64)
    depends = dependencies(trace, marked, found, behind=behind)
    if depends is None:
        return None
    graph, work = depends.graph, depends.work
    ends = np.maximum(_ends(marked, work, int(graph.end.max())), depends.begin)
    path = segments(trace, work, graph, depends.nodes).since(depends.begin).waiting_in(waits)
    times = path_times(trace, calls, path, ends, depends.linked)
    return CriticalPath(
        steps=marked,
        begin=depends.begin,
        ends=ends,
        segments=path,
        times=times,
        what_ifs=_what_ifs(trace, depends, calls, times, waits),
        on_host=not len(work.place),
        unlinked=work.unlinked / len(marked),
        waits_recorded=len(work.streams) < 2 or bool(trace.category(SYNCHRONISATIONS).any()),
    )


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


def _ends(marked: list[MarkedStep], work: DeviceActivities, last: int) -> Numbers:
    """Return when all work of each step was done, on host and devices."""
    begins = np.array([since for _, since, _ in marked], np.int64)
    ends = np.array([since + length for _, since, length in marked], np.int64)
    step = np.searchsorted(begins, work.launched, side="right") - 1
    of_steps = ~work.in_flight
    np.maximum.at(ends, np.maximum(step, 0)[of_steps], work.end[of_steps])
    ends = np.maximum.accumulate(ends)
    ends[-1] = last
    return ends


def _what_ifs(
    trace: Trace, depends: Dependencies, calls: Calls, times: PathTimes, waits: Cover
) -> list[WhatIf]:
    """Return how long a step would take without each thing that is on the path."""
    removals = [*_without_work(trace, depends, times)]
    if len(depends.work.place):  # without a device the host's work is everything
        removals += [*_without_waits(trace, depends, depends.host(calls, waits))]
    found = []
    for what, removal in removals:
        time = depends.on_path(removal)
        if what == ALL_WAITS:
            time = int(times.time[times.part == RETURNING].sum())
        if time:
            found.append(WhatIf(what, time / depends.steps, depends.step(removal)))
    return sorted(found, key=lambda one: (one.step, one.what))


def _without_waits(
    trace: Trace, depends: Dependencies, host: Mapping[int, Cover]
) -> Iterator[tuple[str, Removal]]:
    """Yield the host's work and the waits of host and devices."""
    every = np.ones(len(trace.spans["start"]), bool)
    yield ALL_HOST, Removal(host=host)
    yield ALL_WAITS, Removal(waits=every)
    work = depends.work
    blocking = depends.of_work(blocking_copies(trace, Launches(work.place, work.call)))
    yield ALL_BLOCKING_COPIES, Removal(work=blocking, waits=blocking)
    yield ALL_DELAYS, Removal(late=every)


def _without_work(
    trace: Trace, depends: Dependencies, times: PathTimes
) -> Iterator[tuple[str, Removal]]:
    """Yield data loading and the work of devices: all of a kind, and the longest kernels."""
    if (times.phase == PHASES.index(LOADING)).any():
        yield ALL_LOADING, Removal(host=dict.fromkeys(depends.threads, where_phase(trace, LOADING)))
    part, names = activity_parts(trace, depends.work), trace.spans["name"][depends.work.place]
    for what, kind in (
        (ALL_KERNELS, COMPUTING), (ALL_COMMUNICATION, COMMUNICATING), (ALL_COPIES, COPYING)
    ):  # fmt: skip
        yield what, Removal(work=depends.of_work(part == kind))
    kernels = times.part == COMPUTING
    sums = np.bincount(times.name[kernels], times.time[kernels], minlength=1).astype(np.int64)
    for code in np.argsort(-sums, kind="stable")[:MAX_KERNELS].tolist():
        removed = depends.of_work((part == COMPUTING) & (names == code))
        yield trace.tables["name"][code], Removal(work=removed)


@dataclass(frozen=True)
class Segments:
    """A path as spans of time, each starting at the end of the one before; times in ns.

    Attributes:
        begin: When each begins.
        end: When it ends.
        part: Its part, an index in :data:`PARTS`.
        name: The name of its kernel, copy or call, as an index in the table of names; -1 for none.
        thread: The host thread; -1 if none is at work.
    """

    begin: Numbers
    end: Numbers
    part: Numbers
    name: Numbers
    thread: Numbers

    def since(self, begin: int) -> Segments:
        """Return the part of the path from a time on."""
        some = self.end > begin
        columns = (self.end, self.part, self.name, self.thread)
        return Segments(np.maximum(self.begin, begin)[some], *(one[some] for one in columns))

    def waiting_in(self, where: Cover) -> Segments:
        """Return the same path, on which the host waits for earlier work during a cover."""
        if not len(where[0]):
            return self
        every = np.ones(len(self.begin), bool)
        begin, end, part, name = _cut(self, np.concatenate(where), every)
        thread = self.thread[np.searchsorted(self.end, begin, side="right")]
        waits = (part == AT_HOST) & inside(begin, where)
        name, thread = np.where(waits, UNKNOWN, name), np.where(waits, UNKNOWN, thread)
        return Segments(begin, end, np.where(waits, EARLIER, part), name, thread)


def activity_parts(trace: Trace, work: DeviceActivities) -> Numbers:
    """Return the part of :data:`PARTS` of each device activity."""
    collective = trace.communication[work.place]
    copies = trace.category(COPIES, MEMSETS)[work.place]
    own = np.where(collective, COMMUNICATING, np.where(copies, COPYING, COMPUTING))
    return np.where(work.of_no_step, EARLIER, own)


def segments(trace: Trace, work: DeviceActivities, graph: Graph, path: Numbers) -> Segments:
    """Return a path as spans of time.

    Args:
        trace: The trace.
        work: Device activities.
        graph: The graph of dependencies.
        path: The nodes of the path, in order.
    """
    slot, names = graph.binding[path], trace.spans["name"]
    left = graph.end[graph.before[slot, path]]
    thread, at_work = graph.thread[slot, path], left + graph.host[slot, path]
    begin, end, done = graph.begin[path], graph.end[path], graph.work[path]
    is_work = done != UNKNOWN
    place = np.where(is_work, done, 0)
    nothing = np.full(len(path), UNKNOWN, np.int64)
    own, maker, own_part, waiting = (nothing.copy() for _ in range(4))
    if is_work.any():
        own = np.where(is_work, names[work.place[place]], UNKNOWN)
        known = is_work & (work.call[place] != UNKNOWN)
        maker = np.where(known, names[work.call[place]], UNKNOWN)
        own_part = activity_parts(trace, work)[place]
        waiting = np.where(is_work & work.held[place], EARLIER, WAITING)
    returns = np.where(graph.call[path] != UNKNOWN, names[graph.call[path]], UNKNOWN)
    launch = is_work & (slot == HOST) & (thread != UNKNOWN)
    late = graph.late[path]
    held = is_work & (late > MAX_START_DELAY_NS)  # for a reason that the trace does not tell
    held |= is_work & (slot == HOST) & ~launch
    until = np.where(held, np.where(launch, begin - late, at_work), begin)
    waited = np.where(graph.call[path] != UNKNOWN, RETURNING, WAITING)
    delay = np.where(launch, LAUNCHING, np.where(is_work, BETWEEN, waited))
    delayed_by = np.where(launch, maker, np.where(is_work, own, returns))
    rows = [
        (left, at_work, np.full(len(path), AT_HOST), nothing, thread),
        (at_work, until, delay, delayed_by, nothing),
        (until, begin, waiting, np.where(waiting == EARLIER, UNKNOWN, own), nothing),
        (begin, end, own_part, own, nothing),
    ]
    columns = (np.stack(column, axis=1).ravel() for column in zip(*rows, strict=True))
    begins, ends, parts, called, threads = columns
    some = ends > begins
    small = (parts.astype(np.int32), called.astype(np.int32), threads.astype(np.int32))
    return Segments(begins[some], ends[some], *(column[some] for column in small))


@dataclass(frozen=True)
class PathTimes:
    """Times of a path by step, part and name; rows in the order of the steps, times in ns.

    Attributes:
        step: Index of the step, from 0.
        part: Index in :data:`PARTS`.
        phase: Index in :data:`PHASES` for the host; else -1.
        name: Index in the table of names of an operator, Python function, kernel, copy or call; -1
            for none.
        count: The number of pieces of the path.
        time: Their total time.
    """

    step: Numbers
    part: Numbers
    phase: Numbers
    name: Numbers
    count: Numbers
    time: Numbers


def path_times(
    trace: Trace, calls: Calls, path: Segments, cuts: Numbers, linked: Numbers
) -> PathTimes:
    """Return the times of a path by step, part and name.

    Args:
        trace: The trace.
        calls: Its operators and Python frames.
        path: The path.
        cuts: When each step ends, ascending; the last one ends with the path.
        linked: Threads whose waits are known.
    """
    covers = [where_phase(trace, phase) for phase in PRECEDENCE]
    found = [_cut(path, cuts, path.thread == UNKNOWN)]
    for thread in distinct(path.thread[path.thread != UNKNOWN]).tolist():
        changes, names = innermost_calls(trace, calls, thread)
        bounds = [cuts, changes, *(side for cover in covers for side in cover)]
        begin, end, part, name = _cut(path, np.concatenate(bounds), path.thread == thread)
        name = np.append(names, UNKNOWN)[np.searchsorted(changes, begin, side="right") - 1]
        if thread not in linked:
            part = np.where(name == UNKNOWN, WAITING, part)
        found.append((begin, end, part, name))
    begin, end, part, name = (np.concatenate(column) for column in zip(*found, strict=True))
    found.clear()  # else all pieces are in memory twice
    step = np.searchsorted(cuts, begin, side="right")
    phase = np.where(part == AT_HOST, _phase_at(covers, begin), UNKNOWN)
    return _summed(step, part, phase, name, end - begin)


def _cut(path: Segments, bounds: Numbers, chosen: Numbers) -> tuple[Numbers, ...]:
    """Return start, end, part and name of the chosen segments, cut at the bounds."""
    begin, end = path.begin[chosen], path.end[chosen]
    if not len(begin):
        return begin, end, path.part[chosen], path.name[chosen]
    bounds = distinct(bounds)
    first, last = np.searchsorted(bounds, begin, "right"), np.searchsorted(bounds, end, "left")
    pieces = last - first + 1
    which = np.repeat(np.arange(len(begin), dtype=np.int32), pieces)
    number = np.arange(len(which)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    bound = first[which] + number
    starts = np.where(number == 0, begin[which], np.append(bounds, 0)[bound - 1])
    is_last = number == pieces[which] - 1
    ends = np.where(is_last, end[which], np.append(bounds, 0)[np.where(is_last, 0, bound)])
    return starts, ends, path.part[chosen][which], path.name[chosen][which]


def innermost_calls(trace: Trace, calls: Calls, thread: int) -> tuple[Numbers, Numbers]:
    """Return when the innermost call of a thread changes, and its name from then on."""
    spans, parent = trace.spans, calls.parent
    end = (spans["start"] + spans["length"])[calls.span]
    inside = parent != ROOT
    while (over := inside & (end > end[parent])).any():  # as in nesting.callers
        end[over] = end[parent[over]]
    lasts = spans["length"][calls.span] > 0
    selected = np.flatnonzero((spans["thread"][calls.span] == thread) & lasts)
    name = spans["name"][calls.span]
    outer = np.where(inside, name[parent], UNKNOWN)
    times = np.concatenate([end[selected], spans["start"][calls.span[selected]]])
    names = np.concatenate([outer[selected], name[selected]])
    order = np.lexsort(
        (np.concatenate([-selected, selected]), np.arange(len(times)) >= len(selected), times)
    )
    return times[order], names[order]


def _phase_at(covers: list[Cover], time: Numbers) -> Numbers:
    """Return the first phase that covers each time; the rest if none does."""
    found = np.full(len(time), len(covers), np.int32)
    for number in range(len(covers) - 1, -1, -1):
        found[inside(time, covers[number])] = number
    return found


def _summed(
    step: Numbers, part: Numbers, phase: Numbers, name: Numbers, time: Numbers
) -> PathTimes:
    """Return one row for each distinct combination, with the sum of its times."""
    names = int(name.max(initial=0)) + 2
    key = ((step * len(PARTS) + part) * (len(PHASES) + 1) + phase + 1) * names + name + 1
    _, first, where, count = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    sums = np.zeros(len(first), np.int64)
    np.add.at(sums, where, time)
    return PathTimes(step[first], part[first], phase[first], name[first], count, sums)

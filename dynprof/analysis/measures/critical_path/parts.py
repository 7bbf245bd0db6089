"""The parts of a path through a capture: each nanosecond counts once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.critical_path.graph import HOST
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.timeline.nesting import ROOT
from dynprof.analysis.measures.timeline.phases import PRECEDENCE, REST, where_phase
from dynprof.analysis.reading.events import COPIES, MEMSETS
from dynprof.analysis.reading.intervals import distinct, inside

if TYPE_CHECKING:
    from dynprof.analysis.measures.critical_path.graph import Graph, Numbers
    from dynprof.analysis.measures.critical_path.work import Work
    from dynprof.analysis.measures.timeline.operators import Calls
    from dynprof.analysis.reading.intervals import Cover
    from dynprof.analysis.reading.trace import Trace

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


def work_parts(trace: Trace, work: Work) -> Numbers:
    """Return the part of :data:`PARTS` of each device activity."""
    collective = trace.communication[work.place]
    copies = trace.category(COPIES, MEMSETS)[work.place]
    own = np.where(collective, COMMUNICATING, np.where(copies, COPYING, COMPUTING))
    return np.where(work.of_no_step, EARLIER, own)


def segments(trace: Trace, work: Work, graph: Graph, path: Numbers) -> Segments:
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
        own_part = work_parts(trace, work)[place]
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

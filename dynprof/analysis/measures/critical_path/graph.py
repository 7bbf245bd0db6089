"""The dependencies in a capture as a graph, and the longest path through it.

A node is the end of a device activity, or a sync point. At a sync point a thread of the host
continues because of a device or another thread. Between sync points a thread runs by itself, so
the time from a sync point to a launch is an edge. Each node has up to three incoming edges. The
binding one is the edge that was ready last. The delay from that moment to the observed one is added
to it, so the longest path to each node takes exactly the observed time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.reading.intervals import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path.waits import Waits
    from dynprof.analysis.measures.critical_path.work import Work
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.signedinteger[Any]]
    """Whole numbers; those of indices and codes have 32 bits or less."""

HOST, ORDER, WAIT = range(3)
"""Kinds of edges. ``HOST``: from the host thread that launched or continues. ``ORDER``: from the
same stream, or from another host thread. ``WAIT``: from an event on another stream, or from the
device that a call waits for."""
SLOTS = 3
"""Number of kinds of edges, and so of edges into an event."""
_BLOCK = 1 << 13
"""Number of nodes that are lists at a time; lists take five times the memory of columns."""
NEVER = -(1 << 60)
"""Delay of a missing edge, in ns: low enough never to be on the longest path."""


@dataclass(frozen=True)
class Graph:
    """Nodes in topological order; times in ns.

    The first node is the start of the path.

    Attributes:
        work: The device activity that ends at each node; -1 for sync points.
        call: Index of the call that ends at a sync point; -1 if there is none.
        begin: When the activity began; for a sync point, its time.
        end: The time of each node.
        before: The source node of each incoming edge, by kind of edge.
        delay: How long each edge takes.
        host: The part of that in which a host thread works, from the edge's start.
        calling: How long a launch call lasts after the host's edge, beyond the shortest launch.
        late: How long each activity could have begun before it did.
        thread: That host thread; -1 for none.
        binding: The kind of edge that was ready last.
    """

    work: Numbers
    call: Numbers
    begin: Numbers
    end: Numbers
    before: Numbers
    delay: Numbers
    host: Numbers
    calling: Numbers
    late: Numbers
    thread: Numbers
    binding: Numbers

    @property
    def own(self) -> Numbers:
        """Duration of each device activity; 0 for sync points."""
        return self.end - self.begin

    def longest(self, own: Numbers, delay: Numbers) -> int:
        """Return the length of the longest path from the first node.

        Args:
            own: Duration of each node.
            delay: Duration of each edge.
        """
        reached = [0]
        for first in range(1, len(own), _BLOCK):
            some = slice(first, first + _BLOCK)
            columns = (*self.before[:, some].tolist(), *delay[:, some].tolist(), own[some].tolist())
            for a, b, c, to_a, to_b, to_c, took in zip(*columns, strict=True):
                last, other, third = reached[a] + to_a, reached[b] + to_b, reached[c] + to_c
                if other > last:
                    last = other
                if third > last:
                    last = third
                reached.append(last + took)
        return max(reached)

    def path(self) -> Numbers:
        """Return the nodes of the longest path, from its second node to the last of all nodes."""
        last = int(np.flatnonzero(self.end == self.end.max())[-1])
        bound = self.before[self.binding, np.arange(len(self.end))].tolist()
        found = []
        while last:
            found.append(last)
            last = bound[last]
        return np.array(found[::-1], np.int64)


class _SyncPoints:
    """Moments at which a host thread continues because of a device or another thread.

    Attributes:
        time: The time of each.
        thread: The thread that continues.
        call: Index of the call that ends; -1 if there is none.
        until: When the thread's work before it ended; :data:`NEVER` if unknown.
        source: The device activity it waited for; -1 for none.
        other: The thread it waited for; -1 for none.
    """

    def __init__(self, trace: Trace, work: Work, waits: Waits, main: int, end: int) -> None:
        spans, rows = trace.spans, list[tuple[int, ...]]()
        ends = spans["start"] + spans["length"]
        for call, source in waits.of_calls():
            columns = (ends, spans["thread"], spans["start"])
            time, thread, begin = (int(column[call]) for column in columns)
            rows.append((time, thread, call, begin, source, UNKNOWN))
        for thread, since, begin, until in waits.for_backward:
            rows.append((begin, thread, UNKNOWN, NEVER, UNKNOWN, main))
            rows.append((until, main, UNKNOWN, since, UNKNOWN, thread))
        done = np.flatnonzero(work.end <= end)
        if main != UNKNOWN and len(done) and (work.call == UNKNOWN).all():
            last = int(
                done[work.end[done].argmax()]
            )  # the host may wait for it: no launch is known
            rows.append((end, main, UNKNOWN, NEVER, last, UNKNOWN))
        elif main != UNKNOWN:
            rows.append((end, main, UNKNOWN, end, UNKNOWN, UNKNOWN))
        table = np.array(sorted(rows), np.int64).reshape(-1, 6).T
        self.time, self.thread, self.call, self.until, self.source, self.other = table

    def last(self, thread: Numbers, until: Numbers, *, before: bool = False) -> Numbers:
        """Return the last sync point of each thread up to a time, or before it; -1 for none."""
        found = np.full(len(thread), UNKNOWN, np.int64)
        for number in distinct(thread).tolist():
            selected, here = np.flatnonzero(self.thread == number), thread == number
            times, wanted = self.time[selected], until[here]
            place = np.searchsorted(times, wanted, side="left" if before else "right") - 1
            found[here] = np.append(selected, UNKNOWN)[place]
        return found


class _Builder:
    """Builds the graph: all device activities, then all sync points, sorted at the end."""

    def __init__(self, trace: Trace, work: Work, waits: Waits, main: int, span: tuple[int, int]):
        self.begin, self.end = span
        self.main, self.work, self.waits = main, work, waits
        self.sync_points = _SyncPoints(trace, work, waits, main, self.end)
        self.works, self.count = len(work.place), 1 + len(work.place) + len(self.sync_points.time)
        shape = (SLOTS, self.count)
        self.from_, self.valid = np.zeros(shape, np.int32), np.zeros(shape, bool)
        self.ready = np.full(shape, self.begin, np.int64)
        self.host, self.thread = np.zeros(shape, np.int64), np.full(shape, UNKNOWN, np.int32)
        start = np.concatenate([[self.begin], work.start, self.sync_points.time])
        over = np.concatenate([[self.begin], work.end, self.sync_points.time])
        # A backward pass may have begun before the path; no node is before the first one.
        self.start, self.over = np.maximum(start, self.begin), np.maximum(over, self.begin)
        # Ties: earlier starts first, and an activity before the sync point that waits for it.
        order = np.lexsort((np.arange(self.count), self.start, self.over))
        self.rank = np.empty(self.count, np.int32)
        self.rank[order] = np.arange(self.count)
        self.order = order

    def along_thread(
        self, slot: int, nodes: Numbers, thread: Numbers, until: Numbers, found: Numbers
    ) -> None:
        """Add edges from sync points of a thread that works up to a given time."""
        at = np.where(found == UNKNOWN, 0, found + 1 + self.works)
        until = np.maximum(until, self.over[at])
        self.from_[slot, nodes], self.valid[slot, nodes] = at, True
        self.host[slot, nodes] = until - self.over[at]
        self.thread[slot, nodes], self.ready[slot, nodes] = thread, until

    def add_works(self) -> None:
        """Add the edges to device activities: by launch, by stream, by event."""
        work, nodes = self.work, np.arange(1, 1 + self.works)
        called = np.flatnonzero((work.call != UNKNOWN) & ~work.held)
        launched = np.maximum(work.launched[called], self.begin)
        thread = work.thread[called]
        points = self.sync_points.last(thread, launched)
        self.along_thread(HOST, nodes[called], thread, launched, points)
        soonest = np.minimum(work.launched + work.shortest_launch, work.start)[called]
        self.ready[HOST, nodes[called]] = np.maximum(soonest, launched)
        behind = np.flatnonzero(work.before != UNKNOWN)
        self.from_[ORDER, nodes[behind]] = work.before[behind] + 1
        self.ready[ORDER, nodes[behind]] = work.end[work.before[behind]]
        self.valid[ORDER, nodes[behind]] = True
        for waiting, source, recorded in self.waits.of_streams():
            node, ended = waiting + 1, int(work.end[source])
            last = int(self.ready[:, node][self.valid[:, node]].max(initial=self.begin))
            if ended > last or (recorded and not self.valid[WAIT, node]):
                self.from_[WAIT, node], self.ready[WAIT, node] = source + 1, ended
                self.valid[WAIT, node] = True

    def _calling(self, binding: Numbers) -> Numbers:
        """Return how long slow calls delay the activities they launch, if nothing else does."""
        work, selected = self.work, slice(1, 1 + self.works)
        soonest = np.maximum(work.launched + work.shortest_launch, self.begin)
        slow = np.maximum(np.minimum(work.called, work.start) - soonest, 0)
        found = np.zeros(self.count, np.int64)
        bound = self.valid[HOST, selected] & (binding[selected] == HOST)
        bound &= self.thread[HOST, selected] != UNKNOWN
        found[selected] = np.where(bound, slow, 0)
        return found

    def _late(self, binding: Numbers) -> Numbers:
        """Return how long each activity could have begun before it did; 0 for sync points."""
        work, nodes = self.work, np.arange(1, 1 + self.works)
        slot = binding[nodes]
        ready = self.over[self.from_[slot, nodes]] + self.host[slot, nodes]
        called = np.maximum(work.called, work.launched + work.shortest_launch)
        launched = (slot == HOST) & (self.thread[slot, nodes] != UNKNOWN)
        found = np.zeros(self.count, np.int64)
        found[nodes] = work.start - np.where(launched, np.maximum(called, ready), ready)
        return np.maximum(found, 0)

    def add_sync_points(self) -> None:
        """Add the edges to sync points: from their own thread, from another one, from a device."""
        points, nodes = self.sync_points, np.arange(1 + self.works, self.count)
        earlier = points.last(points.thread, points.time, before=True)
        self.along_thread(HOST, nodes, points.thread, points.until, earlier)
        some = np.flatnonzero(points.other != UNKNOWN)
        thread, time = points.other[some], points.time[some]
        earlier = points.last(thread, time, before=True)
        self.along_thread(ORDER, nodes[some], thread, time, earlier)
        devices = np.flatnonzero(points.source != UNKNOWN)
        self.from_[WAIT, nodes[devices]] = points.source[devices] + 1
        self.ready[WAIT, nodes[devices]] = self.work.end[points.source[devices]]
        self.valid[WAIT, nodes[devices]] = True

    def built(self) -> Graph:
        """Return the sorted graph. Each node's binding edge has the observed duration."""
        self.valid &= (self.rank[self.from_] < self.rank) & (self.ready <= self.start)
        unbound = ~self.valid.any(axis=0)  # linked to the first node
        self.valid[HOST, unbound], self.from_[HOST, unbound] = True, 0
        self.ready[HOST, unbound], self.host[HOST, unbound] = self.begin, 0
        self.thread[HOST, unbound] = UNKNOWN
        ready = np.where(self.valid, self.ready, NEVER)
        binding, every = ready.argmax(axis=0).astype(np.int8), np.arange(self.count)
        ready[binding, every] = self.start
        ready -= self.over[self.from_]
        delay = np.where(self.valid, ready, NEVER)
        calling, late = self._calling(binding), self._late(binding)
        order, work, call = self.order, every.astype(np.int32) - 1, np.full_like(late, UNKNOWN)
        work[1 + self.works :] = UNKNOWN
        call[1 + self.works :] = self.sync_points.call
        return Graph(
            work=work[order],
            call=call[order],
            begin=self.start[order],
            end=self.over[order],
            before=self.rank[np.where(self.valid, self.from_, 0)][:, order],
            delay=delay[:, order],
            host=np.where(self.valid, self.host, 0)[:, order],
            calling=calling[order],
            late=late[order],
            thread=self.thread[:, order],
            binding=binding[order],
        )


def path_graph(trace: Trace, work: Work, waits: Waits, main: int, span: tuple[int, int]) -> Graph:
    """Return the graph of dependencies.

    Args:
        trace: The trace.
        work: Device activities.
        waits: Waits between streams, calls and threads.
        main: The thread of the steps; -1 if no thread is known.
        span: The start of the path, and when the host finished, in ns.
    """
    builder = _Builder(trace, work, waits, main, span)
    builder.add_works()
    builder.add_sync_points()
    return builder.built()

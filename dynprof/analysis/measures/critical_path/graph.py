"""What has to wait for what in a capture, as a graph; and the longest path through it.

A node is the end of something that a device did, or a joint: a moment at which a thread of the host
goes on because of somebody else. Between joints a thread goes its own way, so that the time from a
joint to a launch is an edge. Each node has up to three edges that lead to it, of which one binds:
the one that was ready last. What lies between that moment and the observed one is added to it, so
that the longest path to each node is as long as it took.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.reading.intervals import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path.waits import Waits
    from dynprof.analysis.measures.critical_path.work import Work
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

HOST, ORDER, WAIT = range(3)
"""Which edge: the thread of the host that launched or goes on; the stream, or another thread of the
host; an event on another stream, or the device that a call waits for."""
SLOTS = 3
NEVER = -(1 << 60)
"""How much later than its begin a node comes by an edge that there is not, in ns."""


@dataclass(frozen=True)
class Graph:
    """Nodes in an order in which each comes after those it waits for; times in ns.

    The first is the begin of everything.

    Attributes:
        work: Which work of a device each is the end of; -1 for joints.
        call: The place of the call that a joint is the end of; -1 where there is none.
        begin: When the work began; of a joint, when it was.
        end: When each was.
        before: From which node each of its edges leads, by kind of edge.
        delay: How long each edge takes.
        host: For how long of that a thread of the host is at work, from the edge's begin on.
        calling: For how long after that a call lasts that launches, beyond the quickest launch.
        thread: Which thread that is; -1 for none.
        binding: Which of the edges was the last.
    """

    work: Numbers
    call: Numbers
    begin: Numbers
    end: Numbers
    before: Numbers
    delay: Numbers
    host: Numbers
    calling: Numbers
    thread: Numbers
    binding: Numbers

    @property
    def own(self) -> Numbers:
        """How long what a device did took."""
        return self.end - self.begin

    @cached_property
    def _before(self) -> list[list[int]]:
        """The same as :attr:`before`, without the first node's."""
        found: list[list[int]] = self.before[:, 1:].tolist()
        return found

    def longest(self, own: Numbers, delay: Numbers) -> int:
        """Return how long the longest path takes, from the begin of everything.

        Args:
            own: How long each node takes of itself.
            delay: How long each edge takes.
        """
        reached = [0]
        columns = (*self._before, *delay[:, 1:].tolist(), own[1:].tolist())
        for a, b, c, to_a, to_b, to_c, took in zip(*columns, strict=True):
            last, other, third = reached[a] + to_a, reached[b] + to_b, reached[c] + to_c
            if other > last:
                last = other
            if third > last:
                last = third
            reached.append(last + took)
        return max(reached)

    def path(self) -> Numbers:
        """Return the nodes of the longest path, from the second to the one that is last of all."""
        last = int(np.flatnonzero(self.end == self.end.max())[-1])
        bound = self.before[self.binding, np.arange(len(self.end))].tolist()
        found = []
        while last:
            found.append(last)
            last = bound[last]
        return np.array(found[::-1], np.int64)


class _SyncPoints:
    """Moments at which a thread of the host goes on because of somebody else.

    Attributes:
        time: When.
        thread: Which thread.
        call: The place of the call that ends; -1 where there is none.
        until: Up to when the thread was at work before; long ago where that is not known.
        source: The work it waited for; -1 for none.
        other: The thread it waited for; -1 for none.
    """

    def __init__(self, trace: Trace, waits: Waits, main: int, end: int) -> None:
        spans, rows = trace.spans, list[tuple[int, ...]]()
        ends = spans["start"] + spans["length"]
        for call, source in waits.of_calls():
            columns = (ends, spans["thread"], spans["start"])
            time, thread, begin = (int(column[call]) for column in columns)
            rows.append((time, thread, call, begin, source, UNKNOWN))
        for thread, since, begin, until in waits.for_backward:
            rows.append((begin, thread, UNKNOWN, NEVER, UNKNOWN, main))
            rows.append((until, main, UNKNOWN, since, UNKNOWN, thread))
        if main != UNKNOWN:
            rows.append((end, main, UNKNOWN, end, UNKNOWN, UNKNOWN))
        table = np.array(sorted(rows), np.int64).reshape(-1, 6).T
        self.time, self.thread, self.call, self.until, self.source, self.other = table

    def last(self, thread: Numbers, until: Numbers, *, before: bool = False) -> Numbers:
        """Return the last joint of each thread up to a time, or before it; -1 for none."""
        found = np.full(len(thread), UNKNOWN, np.int64)
        for number in distinct(thread).tolist():
            mine, asked = np.flatnonzero(self.thread == number), thread == number
            times, wanted = self.time[mine], until[asked]
            place = np.searchsorted(times, wanted, side="left" if before else "right") - 1
            found[asked] = np.append(mine, UNKNOWN)[place]
        return found


class _Builder:
    """Puts the graph together; first all work, then all joints, before they are put in order."""

    def __init__(self, trace: Trace, work: Work, waits: Waits, main: int, span: tuple[int, int]):
        self.begin, self.end = span
        self.main, self.work, self.waits = main, work, waits
        self.sync_points = _SyncPoints(trace, waits, main, self.end)
        self.works, self.count = len(work.place), 1 + len(work.place) + len(self.sync_points.time)
        shape = (SLOTS, self.count)
        self.from_, self.valid = np.zeros(shape, np.int64), np.zeros(shape, bool)
        self.ready = np.full(shape, self.begin, np.int64)
        self.host, self.thread = np.zeros(shape, np.int64), np.full(shape, UNKNOWN, np.int64)
        start = np.concatenate([[self.begin], work.start, self.sync_points.time])
        over = np.concatenate([[self.begin], work.end, self.sync_points.time])
        # A backward pass may have begun before everything; nothing comes before the first node.
        self.start, self.over = np.maximum(start, self.begin), np.maximum(over, self.begin)
        # What ends together: what began first, work before the joint that waits for it.
        order = np.lexsort((np.arange(self.count), self.start, self.over))
        self.rank = np.empty(self.count, np.int64)
        self.rank[order] = np.arange(self.count)
        self.order = order

    def along_thread(
        self, slot: int, nodes: Numbers, thread: Numbers, until: Numbers, found: Numbers
    ) -> None:
        """Add edges from joints of a thread, which is at work up to a time."""
        at = np.where(found == UNKNOWN, 0, found + 1 + self.works)
        until = np.maximum(until, self.over[at])
        self.from_[slot, nodes], self.valid[slot, nodes] = at, True
        self.host[slot, nodes] = until - self.over[at]
        self.thread[slot, nodes], self.ready[slot, nodes] = thread, until

    def add_works(self) -> None:
        """Add the edges to what devices did: by launch, by stream, by event."""
        work, nodes = self.work, np.arange(1, 1 + self.works)
        called = np.flatnonzero(work.call != UNKNOWN)
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
        """Return for how long slow calls keep what they launch, where nothing else does."""
        work, mine = self.work, slice(1, 1 + self.works)
        soonest = np.maximum(work.launched + work.shortest_launch, self.begin)
        slow = np.maximum(np.minimum(work.called, work.start) - soonest, 0)
        found = np.zeros_like(self.host)
        bound = self.valid[HOST, mine] & (binding[mine] == HOST) & (work.call != UNKNOWN)
        found[HOST, mine] = np.where(bound, slow, 0)
        return found

    def add_sync_points(self) -> None:
        """Add the edges to joints: along their thread, from another one, from a device."""
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
        """Return the graph, in order, each node's last edge as long as it took."""
        self.valid &= (self.rank[self.from_] < self.rank) & (self.ready <= self.start)
        unbound = ~self.valid.any(axis=0)  # goes back to the begin of everything
        self.valid[HOST, unbound], self.from_[HOST, unbound] = True, 0
        self.ready[HOST, unbound], self.host[HOST, unbound] = self.begin, 0
        self.thread[HOST, unbound] = UNKNOWN
        ready = np.where(self.valid, self.ready, NEVER)
        binding, every = ready.argmax(axis=0), np.arange(self.count)
        ready[binding, every] = self.start
        delay = np.where(self.valid, ready - self.over[self.from_], NEVER)
        calling = self._calling(binding)
        order, kind = self.order, np.arange(self.count)
        is_work = (kind > 0) & (kind <= self.works)
        call = np.full(self.count, UNKNOWN, np.int64)
        call[1 + self.works :] = self.sync_points.call
        return Graph(
            work=np.where(is_work, kind - 1, UNKNOWN)[order],
            call=call[order],
            begin=self.start[order],
            end=self.over[order],
            before=self.rank[np.where(self.valid, self.from_, 0)][:, order],
            delay=delay[:, order],
            host=np.where(self.valid, self.host, 0)[:, order],
            calling=calling[:, order],
            thread=self.thread[:, order],
            binding=binding[order],
        )


def path_graph(trace: Trace, work: Work, waits: Waits, main: int, span: tuple[int, int]) -> Graph:
    """Return what has to wait for what.

    Args:
        trace: The trace.
        work: What devices did.
        waits: Who waited for whom.
        main: The thread of the steps; -1 where no thread is known.
        span: From when on, and when the host was done, in ns.
    """
    builder = _Builder(trace, work, waits, main, span)
    builder.add_works()
    builder.add_sync_points()
    return builder.built()

"""The dependencies in a capture as a graph, and the longest path through it.

A node is the end of a device activity, or a sync point. At a sync point a thread of the host
continues because of a device or another thread. Between sync points a thread runs by itself, so
the time from a sync point to a launch is an edge. Each node has up to three incoming edges. The
binding one is the edge that was ready last. The delay from that moment to the observed one is added
to it, so the longest path to each node takes exactly the observed time.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynprof.analysis.measures.timeline.launches import (
    STREAM_KEY_FACTOR,
    UNKNOWN,
    Launches,
    held,
    in_flight,
)
from dynprof.analysis.measures.timeline.steps import from_before
from dynprof.analysis.reading.events import COPIES, LABELS, LAUNCHES, OPERATORS, SYNCHRONISATIONS
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.steps import MarkedStep
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
_BACKWARD = "Backward"
"""Part of the names of operators on autograd's threads, in all versions of torch."""
_ALL_STREAMS = (UNKNOWN, (1 << 32) - 1)
"""In place of a stream's number in a wait for a whole device."""


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

    def __init__(
        self, trace: Trace, work: DeviceActivities, waits: Waits, main: int, end: int
    ) -> None:
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

    def __init__(
        self, trace: Trace, work: DeviceActivities, waits: Waits, main: int, span: tuple[int, int]
    ):
        self.begin, self.end = span
        self.main, self.work, self.waits = main, work, waits
        self.sync_points = _SyncPoints(trace, work, waits, main, self.end)
        self.activities = len(work.place)
        self.count = 1 + self.activities + len(self.sync_points.time)
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
        at = np.where(found == UNKNOWN, 0, found + 1 + self.activities)
        until = np.maximum(until, self.over[at])
        self.from_[slot, nodes], self.valid[slot, nodes] = at, True
        self.host[slot, nodes] = until - self.over[at]
        self.thread[slot, nodes], self.ready[slot, nodes] = thread, until

    def add_activities(self) -> None:
        """Add the edges to device activities: by launch, by stream, by event."""
        work, nodes = self.work, np.arange(1, 1 + self.activities)
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
        work, selected = self.work, slice(1, 1 + self.activities)
        soonest = np.maximum(work.launched + work.shortest_launch, self.begin)
        slow = np.maximum(np.minimum(work.called, work.start) - soonest, 0)
        found = np.zeros(self.count, np.int64)
        bound = self.valid[HOST, selected] & (binding[selected] == HOST)
        bound &= self.thread[HOST, selected] != UNKNOWN
        found[selected] = np.where(bound, slow, 0)
        return found

    def _late(self, binding: Numbers) -> Numbers:
        """Return how long each activity could have begun before it did; 0 for sync points."""
        work, nodes = self.work, np.arange(1, 1 + self.activities)
        slot = binding[nodes]
        ready = self.over[self.from_[slot, nodes]] + self.host[slot, nodes]
        called = np.maximum(work.called, work.launched + work.shortest_launch)
        launched = (slot == HOST) & (self.thread[slot, nodes] != UNKNOWN)
        found = np.zeros(self.count, np.int64)
        found[nodes] = work.start - np.where(launched, np.maximum(called, ready), ready)
        return np.maximum(found, 0)

    def add_sync_points(self) -> None:
        """Add the edges to sync points: from their own thread, from another one, from a device."""
        points, nodes = self.sync_points, np.arange(1 + self.activities, self.count)
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
        work[1 + self.activities :] = UNKNOWN
        call[1 + self.activities :] = self.sync_points.call
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


def dependency_graph(
    trace: Trace, work: DeviceActivities, waits: Waits, main: int, span: tuple[int, int]
) -> Graph:
    """Return the graph of dependencies.

    Args:
        trace: The trace.
        work: Device activities.
        waits: Waits between streams, calls and threads.
        main: The thread of the steps; -1 if no thread is known.
        span: The start of the path, and when the host finished, in ns.
    """
    builder = _Builder(trace, work, waits, main, span)
    builder.add_activities()
    builder.add_sync_points()
    return builder.built()


class StreamWait(NamedTuple):
    """A wait of a device activity for one on another stream.

    Attributes:
        waiting: Index of the activity that waits.
        source: Index of the activity it waits for.
        recorded: Whether the trace tells it; else the source is the last possible one.
    """

    waiting: int
    source: int
    recorded: bool


class CallWait(NamedTuple):
    """A wait of a host call for a device.

    Attributes:
        call: Index of the call among the trace's spans.
        source: Index of the device activity it waits for.
    """

    call: int
    source: int


class Backward(NamedTuple):
    """A wait of the main thread for a backward pass on autograd's thread; times in ns.

    Attributes:
        thread: The thread of the backward pass.
        since: When the main thread was last active before it.
        begin: When the other thread began.
        until: When the main thread continued.
    """

    thread: int
    since: int
    begin: int
    until: int


class _Sync(NamedTuple):
    """CUPTI's record of a wait."""

    device: int
    stream: int
    of_stream: int
    of_record: int


class Waits:
    """Finds the waits of streams, of calls for a device, of threads for a backward pass.

    CUPTI tells them if synchronisations were recorded (``cuda_sync``). Else they come from the
    calls. A ``StreamWaitEvent`` before a launch is a wait of a stream; a ``Synchronize`` is a wait
    of the host. Its source is then the earlier launched work that ended last during the wait.

    Args:
        trace: The trace.
        work: Device activities.
        main: The thread of the steps; -1 if no thread is known.
        begin: Start of the time to search.
        end: End of the time to search.
    """

    def __init__(
        self, trace: Trace, work: DeviceActivities, main: int, begin: int, end: int
    ) -> None:
        spans, self._main = trace.spans, main
        self._trace, self._work = trace, work
        self._end = spans["start"] + spans["length"]
        inside = (self._end > begin) & (self._end <= end)
        self._calls = trace.category(LAUNCHES) & inside
        self._syncs = self._recorded_syncs()
        self._start_of = self._starts_by_correlation()

    def _recorded_syncs(self) -> dict[int, _Sync]:
        """Return CUPTI's records of waits, by the correlation id of the call."""
        spans, found = self._trace.spans, {}
        for place in np.flatnonzero(self._trace.category(SYNCHRONISATIONS)).tolist():
            details = self._trace.tables["details"][spans["details"][place]]
            found[int(spans["correlation"][place])] = _Sync(
                int(spans["device"][place]),
                int(spans["stream"][place]),
                details.waits_for_stream,
                details.waits_for_launch,
            )
        return found

    def _starts_by_correlation(self) -> dict[int, int]:
        """Return the start times of the calls that recorded an awaited event, by correlation id."""
        wanted = [sync.of_record for sync in self._syncs.values() if sync.of_record != UNKNOWN]
        spans = self._trace.spans
        calls = self._trace.category(LAUNCHES) & np.isin(spans["correlation"], wanted)
        return dict(
            zip(spans["correlation"][calls].tolist(), spans["start"][calls].tolist(), strict=True)
        )

    def of_streams(self) -> list[StreamWait]:
        """Return the waits between streams."""
        chosen = self._calls & self._trace.named(lambda name: "StreamWaitEvent" in name)
        spans, found = self._trace.spans, []
        for place in np.flatnonzero(chosen).tolist():
            sync = self._syncs.get(int(spans["correlation"][place]))
            called = int(spans["start"][place])
            found += self._recorded_waits(sync, called) if sync else []
            if not sync or sync.of_record not in self._start_of:
                found += self._possible_waits(sync, called, int(spans["thread"][place]))
        return found

    def _recorded_waits(self, sync: _Sync, called: int) -> list[StreamWait]:
        """Return the wait that CUPTI recorded, at the stream's next work."""
        streams = self._work.streams
        waiting = streams.get(sync.device * STREAM_KEY_FACTOR + sync.stream)
        source = streams.get(sync.device * STREAM_KEY_FACTOR + sync.of_stream)
        if waiting is None or source is None or sync.of_record not in self._start_of:
            return []
        later = waiting.first(called)
        if later == UNKNOWN:
            return []
        earlier = source.last(self._start_of[sync.of_record], int(self._work.start[later]))
        return [StreamWait(later, earlier, recorded=True)] if earlier != UNKNOWN else []

    def _possible_waits(self, sync: _Sync | None, called: int, thread: int) -> list[StreamWait]:
        """Return the possible sources of a wait, if the trace does not tell its event."""
        work, found = self._work, []
        for key, stream in work.streams.items():
            if sync and key != sync.device * STREAM_KEY_FACTOR + sync.stream:
                continue
            later = stream.first(called)
            if later == UNKNOWN or work.thread[later] != thread:
                continue
            start = int(work.start[later])
            for other, given in work.streams.items():
                same_device = other // STREAM_KEY_FACTOR == key // STREAM_KEY_FACTOR
                if other == key or not same_device:
                    continue
                if sync and sync.of_stream not in (UNKNOWN, other % STREAM_KEY_FACTOR):
                    continue
                earlier = given.last(called, start)
                if earlier != UNKNOWN:
                    found.append(StreamWait(later, earlier, recorded=False))
        return found

    def of_calls(self) -> list[CallWait]:
        """Return the calls that waited for a device, and the activities they waited for."""
        spans, found = self._trace.spans, []
        chosen = self._calls & self._trace.named(lambda name: "Synchronize" in name)
        for place in np.flatnonzero(chosen).tolist():
            begin, end = int(spans["start"][place]), int(self._end[place])
            sync = self._syncs.get(int(spans["correlation"][place]))
            last = self._last_of(sync, begin, end)
            if last != UNKNOWN and self._work.end[last] > begin:
                found.append(CallWait(place, last))
        return found + self._blocking_copies()

    def _last_of(self, sync: _Sync | None, begin: int, end: int) -> int:
        """Return the last work that a synchronisation can have waited for."""
        streams, launched = self._work.streams, begin
        candidates = list(streams.values())
        if sync and sync.of_record in self._start_of:
            launched = self._start_of[sync.of_record]
            candidates = self._stream(sync.device, sync.of_stream)
        elif sync and sync.stream not in _ALL_STREAMS:
            candidates = self._stream(sync.device, sync.stream)
        last = [work for one in candidates if (work := one.last(launched, end)) != UNKNOWN]
        return max(last, key=lambda work: int(self._work.end[work]), default=UNKNOWN)

    def _stream(self, device: int, stream: int) -> list[Stream]:
        found = self._work.streams.get(device * STREAM_KEY_FACTOR + stream)
        return [found] if found else []

    def _blocking_copies(self) -> list[CallWait]:
        """Return the calls that waited for their own copy."""
        work = self._work
        own = blocking_copies(self._trace, Launches(work.place, work.call))
        own &= (work.end <= self._end[work.call]) & self._calls[work.call]
        chosen = np.flatnonzero(own)
        pairs = zip(work.call[chosen].tolist(), chosen.tolist(), strict=True)
        return [CallWait(*pair) for pair in pairs]

    @cached_property
    def for_backward(self) -> list[Backward]:
        """When the main thread waited for autograd's threads, which it starts."""
        main = self._main
        spans, trace = self._trace.spans, self._trace
        host = trace.category(OPERATORS)
        backward = host & trace.named(lambda name: _BACKWARD in name or name.startswith("autograd"))
        on_main = (trace.category(OPERATORS, LABELS) | self._calls) & (spans["thread"] == main)
        points = distinct(np.concatenate([spans["start"][on_main], self._end[on_main]]))
        found = []
        for thread in distinct(spans["thread"][backward & (spans["thread"] != main)]).tolist():
            selected = host & (spans["thread"] == thread)
            start, end = spans["start"][selected], self._end[selected]
            gap = np.searchsorted(points, start, side="right")
            inside = (gap > 0) & (gap < len(points))
            inside[inside] = end[inside] <= points[gap[inside]]
            gaps, first = np.unique(gap[inside], return_index=True)
            begins = start[inside][first]
            found += [
                Backward(thread, *times)
                for times in zip(points[gaps - 1].tolist(), begins.tolist(), points[gaps].tolist(),
                                 strict=True)
            ]  # fmt: skip
        return found


@dataclass(frozen=True)
class DeviceActivities:
    """Device activities in order of start; times in ns.

    The copies that their call takes part in appear again at the end, until the call's end only.

    Attributes:
        place: Indices among the trace's spans.
        call: Indices of the calls that launched them; -1 if none was recorded.
        start: When each began, but not before the start of the path, nor while the previous one
            of its stream ran.
        end: When each ended.
        launched: When its call began. It is limited to its own start, because clocks may differ.
        called: When its call ended.
        thread: The thread of its call; -1 if unknown.
        key: Its device and stream in one number.
        in_flight: Mask of those that were launched before the recording began.
        held: Mask of those that began late because of work that the trace does not have.
        of_no_step: Mask of those in flight, if steps are marked.
    """

    place: Numbers
    call: Numbers
    start: Numbers
    end: Numbers
    launched: Numbers
    called: Numbers
    thread: Numbers
    key: Numbers
    in_flight: NDArray[np.bool_]
    held: NDArray[np.bool_]
    of_no_step: NDArray[np.bool_]

    @cached_property
    def streams(self) -> dict[int, Stream]:
        """The work of each stream, by key."""
        return {int(key): Stream(self, key) for key in distinct(self.key)}

    @cached_property
    def shortest_launch(self) -> int:
        """The shortest time from the start of a call to the start of its activity.

        Only activities count whose stream was free then; 0 if there is none.
        """
        free = self.end[self.before] <= self.launched
        free |= self.before == UNKNOWN
        delays = (self.start - self.launched)[free & (self.call != UNKNOWN) & ~self.held]
        return int(delays.min()) if len(delays) else 0

    @cached_property
    def unlinked(self) -> int:
        """How long the streams of which no launch is known worked, if others have launches."""
        known, every = (np.unique(self.key[one]) for one in (self.call != UNKNOWN, slice(None)))
        streams = np.setdiff1d(every, known) if len(known) else known
        apart = np.isin(self.key, streams) & ~self.in_flight
        return int((self.end - self.start)[apart].sum())

    @cached_property
    def before(self) -> Numbers:
        """The activity that ended last on the same stream before each began; -1 for none."""
        found = np.full(len(self.place), -1, np.int64)
        for key in self.streams:
            selected = np.flatnonzero(self.key == key)
            order = selected[np.lexsort((selected, self.end[selected]))]
            last = np.searchsorted(self.end[order], self.start[selected], side="right") - 1
            while (wrong := (last >= 0) & (order[last] >= selected)).any():
                last[wrong] -= 1  # it has no length and is not earlier
            found[selected] = np.where(last >= 0, order[last], -1)
        return found


class Stream:
    """The activities of one stream, in order of launch.

    Args:
        work: All device activities.
        key: The key of device and stream.
    """

    def __init__(self, work: DeviceActivities, key: int) -> None:
        selected = np.flatnonzero(work.key == key)
        order = selected[np.lexsort((selected, work.launched[selected]))]
        ended = np.maximum.accumulate(work.end[order])
        columns = (order, work.launched[order], ended)  # lists take five times the memory
        self._order, self._launched, self._ended = (array("q", one.tobytes()) for one in columns)

    def last(self, launched_before: int, ended_by: int) -> int:
        """Return the last work launched before one time that had ended by another; -1 for none."""
        launched, ended = self._launched, self._ended
        place = min(bisect_left(launched, launched_before), bisect_right(ended, ended_by))
        return self._order[place - 1] if place else -1

    def first(self, launched_from: int) -> int:
        """Return the first work launched from a time on; -1 for none."""
        place = bisect_left(self._launched, launched_from)
        return self._order[place] if place < len(self._order) else -1


def activities_between(trace: Trace, found: Launches, marked: list[MarkedStep]) -> DeviceActivities:
    """Return device activities that ended after the steps began and were launched before their end.

    What was launched before the recording counts until the others have ended.
    """
    begin, end = span_of(marked)
    spans, launches, flying = trace.spans, found.call, in_flight(trace, found)
    over = spans["start"] + spans["length"]
    start, done, known = spans["start"][found.work], over[found.work], launches != UNKNOWN
    launched = np.where(known, np.minimum(spans["start"][launches], start), start)
    launched = np.where(flying, np.minimum(start, begin), launched)
    called = np.where(known, over[launches], start)
    chosen = (done > begin) & (launched < end)
    chosen &= ~flying | (done <= done[chosen & ~flying].max(initial=end))
    wanted = np.flatnonzero(chosen)
    key = spans["device"][found.work] * STREAM_KEY_FACTOR + spans["stream"][found.work]
    start[wanted] = _in_order(key[wanted], np.maximum(start[wanted], begin), done[wanted])
    # A call may take part in its copy. That part is appended in addition to the whole copy.
    waits = blocking_copies(trace, found)[wanted]
    waits &= (start < called)[wanted] & (called < done)[wanted]
    shared = wanted[waits]
    ended = np.concatenate([done[wanted], called[shared]])
    wanted = np.concatenate([wanted, shared])
    place, call = found.work[wanted], launches[wanted]
    return DeviceActivities(
        place=place,
        call=call,
        start=start[wanted],
        end=ended,
        launched=launched[wanted],
        called=called[wanted],
        thread=np.where(known, spans["thread"][launches], UNKNOWN)[wanted],
        key=key[wanted],
        in_flight=flying[wanted],
        held=held(trace, found)[wanted],
        of_no_step=from_before(trace, marked, found)[place],
    )


def span_of(marked: list[MarkedStep]) -> tuple[int, int]:
    """Return the start of the first step and the end of the last on the host."""
    ends = [since + length for _, since, length in marked]
    return min((since for _, since, _ in marked), default=0), max(ends, default=0)


def _in_order(key: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """Return when each activity had its stream alone: the previous one may have run until then."""
    result = start.copy()
    for stream in distinct(key).tolist():
        selected = np.flatnonzero(key == stream)
        reached = np.maximum.accumulate(end[selected])[:-1]
        longer = reached <= end[selected[1:]]
        later = selected[1:][longer]
        result[later] = np.maximum(start[later], reached[longer])
    return result


def blocking_copies(trace: Trace, found: Launches) -> NDArray[np.bool_]:
    """Return which device activities are copies that their call waits for."""
    waits = trace.named(lambda name: "emcpy" in name and "Async" not in name)[found.call]
    pageable = trace.named(lambda name: "Pageable" in name)[found.work]
    copies: NDArray[np.bool_] = trace.category(COPIES)[found.work]
    copies &= (found.call != UNKNOWN) & (waits | pageable)
    return copies

"""Waits of a stream for another one, of a call for a device, of a thread for a backward pass.

CUPTI tells them if synchronisations were recorded (``cuda_sync``). Else they come from the calls. A
``StreamWaitEvent`` before a launch is a wait of a stream; a ``Synchronize`` is a wait of the
host. Its source is then the earlier launched work that ended last during the wait.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dynprof.analysis.measures.critical_path.work import blocking_copies
from dynprof.analysis.measures.timeline.launches import STREAM_KEY_FACTOR, UNKNOWN, Launches
from dynprof.analysis.reading.events import LABELS, LAUNCHES, OPERATORS, SYNCHRONISATIONS
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path.work import Stream, Work
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

_BACKWARD = "Backward"
"""Part of the names of operators on autograd's threads, in all versions of torch."""
_ALL_STREAMS = (UNKNOWN, (1 << 32) - 1)
"""In place of a stream's number in a wait for a whole device."""


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
    """Finds the waits in a trace.

    Args:
        trace: The trace.
        work: Device activities.
        main: The thread of the steps; -1 if no thread is known.
        begin: Start of the time to search.
        end: End of the time to search.
    """

    def __init__(self, trace: Trace, work: Work, main: int, begin: int, end: int) -> None:
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

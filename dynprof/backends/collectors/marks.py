"""The script's marks and ranges on their own tracks: one a domain, more where ranges cross."""

from __future__ import annotations

import os
import re
from bisect import bisect_left, insort
from math import inf
from time import time_ns
from typing import TYPE_CHECKING, Any, Protocol

from dynprof.backends.collectors.base import Collector, named_track
from dynprof.marks.native.library import native_marks
from dynprof.marks.open_ranges import STACKS, all_open
from dynprof.marks.sinks import SINKS, Range, Sink, is_short
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.plural import counted
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from dynprof.backends.collectors.base import Event, Events
    from dynprof.marks.native.library import Listener, NativeMark
    from dynprof.marks.sinks import Source

TRACK = 0x6D78_0000
"""Number of the first track; no thread has such an id."""
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""A lone surrogate, which a script's string may have and a JSON reader may refuse."""
BEGAN_BEFORE, ENDS_AFTER = "began before the window", "ends after the window"
HOST_ONLY = "marks that name a stream are on the host's track only"
NO_DEVICE = f"{HOST_ONLY}: no window has recorded a CUDA device"
IN_CAPTURE = f"{HOST_ONLY} while a graph is being captured"
BEGIN, END = " (begin)", " (end)"
"""Suffixes that name the two ends of a range on a device."""
_warned: set[str] = set()
"""Warnings that this process has given."""


class Domains(dict[str, bool]):
    """A cache of which domains a window keeps; read at every mark.

    Args:
        include: Domains to keep; empty for all.
        exclude: Domains to leave out; ignored where ``include`` has any.

    Attributes:
        are_all: Whether the window keeps every domain.
    """

    def __init__(self, include: Collection[str] = (), exclude: Collection[str] = ()) -> None:
        self._include, self._exclude = frozenset(include), frozenset(exclude)
        self.are_all = not (include or exclude)

    def __missing__(self, domain: str) -> bool:
        named = domain in (self._include or self._exclude)
        kept = self[domain] = named == bool(self._include)
        return kept


class MarkTracks(Collector, Sink):
    """Records the marks of :mod:`dynprof.mstx` while a window records.

    Args:
        domains: Domains to keep.
        sources: Other sources: marks that the script sets through other libraries.
    """

    def __init__(self, domains: Domains, sources: Collection[Source] = ()) -> None:
        self._keeps, self._sources = domains, sources
        self._moments: list[Any] = []  # flat: message, domain, thread and time of each mark
        self._note = self._moments.extend
        self._mark = self._make_marker()
        self._ended: list[tuple[Range, int]] = []
        self._open: list[Range] = []
        self._began_ns = self._ended_ns = 0
        self._native = native_marks()
        self._listener: Listener | None = None

    def start(self) -> None:
        """Start recording marks."""
        self._began_ns = time_ns()
        SINKS.add(self)
        for source in self._sources:
            source.add(self)
        if self._native:
            self._listener = self._native.listen(self._take, self.max_bytes)

    def stop(self) -> None:
        """Stop recording marks."""
        SINKS.remove(self)
        others = [begun for source in self._sources for begun in source.remove(self)]
        if not self._ended_ns:
            self._ended_ns = time_ns()
            kept = (begun for begun in all_open() if self._keeps[begun.domain])
            self._open = [begun for begun in kept if is_short(begun.message)]
            self._open += [begun for begun in others if self._keeps[begun.domain]]
            if self._native and self._listener:
                self._native.remove(self._listener)
                for mark in self._native.all_open(self.max_bytes):
                    self._take(mark)

    def abandon(self) -> None:
        """Do nothing: a child's marks are never saved."""

    def mark(self, message: str, domain: str, stream: object = None) -> None:  # noqa: ARG002
        """Record a moment."""
        self._mark(message, domain)

    def marker(self) -> Callable[[str, str], None]:
        """Return the function that records a moment: a closure, for speed."""
        return self._mark

    def taker(self) -> Callable[[tuple[str, str, int, int]], object] | None:
        """Return the function that records moments of any domain; None unless all are kept."""
        return self._note if self._keeps.are_all else None

    def _make_marker(self) -> Callable[[str, str], None]:
        keeps, note, here, now_ns = self._keeps, self._note, STACKS, time_ns

        # The fields are stored flat: a tuple per mark would trigger garbage collections.
        def mark(message: str, domain: str) -> None:
            note((message, domain, here.number, now_ns()))

        def mark_if_kept(message: str, domain: str) -> None:
            if keeps[domain]:
                mark(message, domain)

        return mark if keeps.are_all else mark_if_kept

    def end(self, ended: Range) -> None:
        """Record the end of a range."""
        if self._keeps[ended.domain]:
            self._ended.append((ended, time_ns()))

    def _take(self, mark: NativeMark) -> None:
        """Record a mark from C; marks after the end are left out later."""
        if not self._keeps[mark.domain]:
            return
        if not mark.range:
            self._note((mark.message, mark.domain, mark.thread, mark.began_ns))
            return
        begun = Range(mark.message, mark.domain, mark.thread, mark.began_ns, mark.range)
        if mark.ended_ns:
            self._ended.append((begun, mark.ended_ns))
        else:
            self._open.append(begun)

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Write nothing; return how many marks of C were dropped."""
        dropped = self._listener.dropped if self._listener and self._listener.wait_drained() else 0
        return (
            (f"{counted(dropped, 'mark')} of C were dropped: the queue was full",)
            if dropped
            else ()
        )

    def events(self) -> Events:
        """Return the marks and ranges between start and stop."""
        if self._listener:
            self._listener.wait_drained()
        moments, ended, still_open = self._moments, self._ended, self._open
        self._moments, self._ended, self._open = [], [], []
        self._note = self._moments.extend
        known = {begun[:5] for begun, _ in ended}  # without the stream, which may be unhashable
        # A range that ended during stop() is in both lists.
        ended += [(begun, self._ended_ns + 1) for begun in still_open if begun[:5] not in known]
        by_domain: dict[str, list[Event]] = {}
        for message, domain, thread, at_ns in zip(*[iter(moments)] * 4, strict=True):
            if not self._began_ns <= at_ns <= self._ended_ns:
                continue
            event = {"ph": "i", "s": "t", "ts": at_ns, **_event_fields(message, domain, thread)}
            by_domain.setdefault(domain, []).append(event)
        for begun, ended_ns in ended:
            if begun.began_ns <= self._ended_ns and ended_ns >= self._began_ns:
                by_domain.setdefault(begun.domain, []).append(self._as_event(begun, ended_ns))
        return list(_on_tracks(dict(sorted(by_domain.items()))))

    def _as_event(self, begun: Range, ended_ns: int) -> Event:
        """Return a range as an event of the trace, cut at the window's start and end."""
        since_ns, until_ns = max(begun.began_ns, self._began_ns), min(ended_ns, self._ended_ns)
        event = _event_fields(begun.message, begun.domain, begun.thread)
        event["args"]["kind"] = "start/end" if begun.number else "push/pop"
        if begun.number:
            event["args"]["range"] = begun.number
        cut = [BEGAN_BEFORE] if since_ns > begun.began_ns else []
        cut += [ENDS_AFTER] if until_ns < ended_ns else []
        if cut:
            event["args"]["cut"] = " and ".join(cut)
        return {"ph": "X", "ts": since_ns, "dur": max(0, until_ns - since_ns), **event}


def _event_fields(message: str, domain: str, thread: int) -> dict[str, Any]:
    args = {"domain": _valid_text(domain), "thread": thread}
    return {"cat": "mstx", "name": _valid_text(message), "pid": os.getpid(), "args": args}


def _valid_text(text: str) -> str:
    return text if text.isascii() else _LONE_SURROGATE.sub("\ufffd", text)


def _on_tracks(by_domain: dict[str, list[Event]]) -> Iterator[Event]:
    """Yield events with their track numbers; ranges of a track nest or follow each other."""
    number = TRACK
    for domain, events in by_domain.items():
        tracks = _Tracks()
        for event in sorted(events, key=lambda event: (event["ts"], -event.get("dur", 0))):
            place = tracks.place(event["ts"], event["ts"] + event.get("dur", 0))
            yield {**event, "tid": number + place}
        for place in range(tracks.count):
            yield named_track(number + place, f"marks: {_valid_text(domain)}")
        number += tracks.count


class _Tracks:
    """Assigns ranges to tracks, in order of time; thousands may be open at once."""

    def __init__(self) -> None:
        self._open: list[list[int]] = []  # the ends of the open ranges, by track
        self._innermost: list[tuple[float, int]] = []  # sorted: the newest end and its track

    @property
    def count(self) -> int:
        """The number of tracks."""
        return len(self._open)

    def place(self, begin: int, end: int) -> int:
        """Put a range on the track where it fits most tightly; return the track."""
        while self._innermost and self._innermost[0][0] <= begin:
            place = self._innermost.pop(0)[1]
            self._open[place].pop()
            self._note(place)
        fits = bisect_left(self._innermost, (end, 0))
        if fits < len(self._innermost):
            place = self._innermost.pop(fits)[1]
        else:
            place = len(self._open)
            self._open.append([])
        self._open[place].append(end)
        self._note(place)
        return place

    def _note(self, place: int) -> None:
        around = self._open[place]
        insort(self._innermost, (around[-1] if around else inf, place))


class Device(Protocol):
    """A device whose streams can be marked; no method may wait for the device."""

    def stream(self, given: object) -> object | None:
        """Return the stream that a script has given; None where it belongs to another device."""

    def is_capturing(self, stream: object) -> bool:
        """Return whether work put on a stream becomes part of a graph."""

    def mark(self, message: str, stream: object) -> None:
        """Put a mark on a stream, after the work queued so far."""


class StreamMarks(Collector, Sink):
    """Sets marks on the device; where that is impossible, warns once in the process.

    Args:
        device: The device that the window records; None for none.
        domains: Domains to keep.
    """

    wants_begins = True  # also without a device: a range may never end, so its start must warn
    only_streams = True

    def __init__(self, device: Device | None, domains: Domains) -> None:
        self._device, self._domains = device, domains
        self._boundary = ErrorBoundary(StderrNotes())
        self._texts: list[str] = []

    def start(self) -> None:
        """Start setting marks."""
        SINKS.add(self)

    def stop(self) -> None:
        """Stop setting marks."""
        SINKS.remove(self)

    def abandon(self) -> None:
        """Do nothing: neither a device nor a sink survives a fork."""

    def mark(self, message: str, domain: str, stream: object = None) -> None:
        """Mark a moment on the stream."""
        self._set(message, domain, stream)

    def begin(self, begun: Range) -> None:
        """Mark where a range begins."""
        self._set(begun.message + BEGIN, begun.domain, begun.stream)

    def end(self, ended: Range) -> None:
        """Mark where a range ends."""
        self._set(ended.message + END, ended.domain, ended.stream)

    def save(self, stem: Path) -> tuple[str, ...]:  # noqa: ARG002
        """Write nothing; return the warnings that the script got."""
        return tuple(self._texts)

    def _set(self, message: str, domain: str, stream: object) -> None:
        none = stream is None or (isinstance(stream, int) and not stream)
        if none or not self._domains[domain]:
            return
        failed = self._boundary.attempt(
            "marking a stream", lambda: self._mark_on_device(message, stream)
        )
        if failed:
            self.stop()

    def _mark_on_device(self, message: str, given: object) -> None:
        if self._device is None:
            self._warn(NO_DEVICE)
            return
        stream = self._device.stream(given)
        if stream is None:
            kind = type(given).__name__
            self._warn(
                f"{HOST_ONLY}: the stream is a {kind}; give a torch.cuda.Stream or its handle"
            )
        elif GRAPH_CAPTURES.under_way() or self._device.is_capturing(stream):
            self._warn(IN_CAPTURE)
        else:
            self._device.mark(message, stream)

    def _warn(self, text: str) -> None:
        if warn_once(text):
            self._texts.append(text)


def warn_once(text: str) -> bool:
    """Warn the script, once in the process; return whether this was the first time."""
    if text in _warned:
        return False
    _warned.add(text)
    warn_script(f"dynprof.mstx: {text}")
    return True

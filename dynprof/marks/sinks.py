"""Who hears of marks: the tracks of open windows, subscribers, another vendor's tools."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from dynprof.runtime.forked_child import forget_in_child

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 156
"""Of a message in a trace; what the Ascend PyTorch Profiler takes of it."""
MAX_BYTES_SUBSCRIBED = 255
"""Of one for a subscriber, as Ascend's MSPTI takes it."""
ALWAYS_SHORT_CHARS = MAX_BYTES // 4
"""Fewer characters than that are short: one has no more than four bytes."""


class Range(NamedTuple):
    """A range that has begun.

    Attributes:
        message: What the script calls it.
        domain: A group of marks that the config can keep or leave out.
        thread: The system's number of the thread that began it.
        began_ns: When, in ns since the epoch.
        number: From 1, what the script ends it by; 0 where it lies inside those that were open on
            its thread.
        stream: Of a device, as the script gave it; None where it gave none.
    """

    message: str
    domain: str
    thread: int
    began_ns: int
    number: int
    stream: object = None


class Sink:
    """Hears of marks and ranges, on the thread that sets them; must be fast.

    Attributes:
        max_bytes: Of the messages that it takes; it does not hear of longer ones.
        wants_begins: Whether it hears of the begin of ranges too, of usual messages.
        only_streams: Whether it hears only of those with a stream.
    """

    max_bytes = MAX_BYTES
    wants_begins = False
    only_streams = False

    def mark(self, message: str, domain: str, stream: object = None) -> None:
        """Note a moment: now."""

    def marker(self) -> Callable[[str, str], None]:
        """Return what notes a moment without a stream, while this is plugged in."""
        return self.mark

    def taker(self) -> Callable[[tuple[str, str, int, int]], object] | None:
        """Return what takes each moment without a stream, ready made, while this is plugged in.

        That is its message, domain, thread and time in ns; None where the sink wants to see it.
        """
        return None

    def begin(self, begun: Range) -> None:
        """Note its begin: now."""

    def end(self, ended: Range) -> None:
        """Note its end: now. It may have begun before this sink was plugged in."""


class Sinks:
    """Those that are plugged in.

    Attributes:
        all: Of messages of a usual length, without a stream.
        marks: What tells each of these of a moment.
        take: What takes the moments of the only one of these, ready made; None for nothing.
        on_streams: Of the same with one.
        of_long: Of those that only some of them take.
        of_begins: Those that hear of begins, without a stream.
        longest: Bytes of the longest message that any takes.
        before_add: Has what marks by itself look for what it marks; returns whether it has found
            it. Is called before one is plugged in; None for nothing.
    """

    before_add: Callable[[], bool] | None = None

    def __init__(self) -> None:
        self.all: tuple[Sink, ...] = ()
        self.on_streams: tuple[Sink, ...] = ()
        self.marks: tuple[Callable[[str, str], None], ...] = ()
        self.take: Callable[[tuple[str, str, int, int]], object] | None = None
        self.of_long: tuple[Sink, ...] = ()
        self.of_begins: tuple[Sink, ...] = ()
        self.longest = MAX_BYTES
        self._lock = threading.RLock()

    def add(self, sink: Sink) -> None:
        """Let one hear of marks."""
        if self.before_add:
            self.before_add()
        with self._lock:
            self._set((*self.on_streams, sink))

    def remove(self, sink: Sink) -> None:
        """Let it hear of none any more."""
        with self._lock:
            self._set(tuple(other for other in self.on_streams if other is not sink))

    def for_message(self, message: str, stream: object) -> tuple[Sink, ...]:
        """Return those that take a message."""
        if len(message) < ALWAYS_SHORT_CHARS or is_short(message):
            return self.all if stream is None else self.on_streams
        return self.of_long

    def for_begin(self, begun: Range) -> tuple[Sink, ...]:
        """Return those that hear of the begin of a range."""
        if begun.stream is None:
            return self.of_begins if is_short(begun.message) else ()
        return tuple(s for s in self.for_message(begun.message, begun.stream) if s.wants_begins)

    def _set(self, sinks: tuple[Sink, ...]) -> None:
        self.on_streams = sinks
        self.all = tuple(sink for sink in sinks if not sink.only_streams)
        self.marks = tuple(sink.marker() for sink in self.all)
        self.take = self.all[0].taker() if len(self.all) == 1 else None
        self.of_long = tuple(sink for sink in sinks if sink.max_bytes > MAX_BYTES)
        self.of_begins = tuple(sink for sink in self.all if sink.wants_begins)
        self.longest = max([MAX_BYTES, *(sink.max_bytes for sink in sinks)])

    def forget(self) -> None:
        """Let none hear of marks in a forked child: what its parent records is not of it."""
        self._lock = threading.RLock()
        self._set(())


SINKS = Sinks()
"""The process has one set of them."""
forget_in_child(SINKS.forget)


def is_short(message: str, most: int = MAX_BYTES) -> bool:
    """Return whether a message has no more bytes than that."""
    return len(message) < ALWAYS_SHORT_CHARS or len(message.encode(errors="replace")) <= most

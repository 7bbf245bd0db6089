"""Where marks go and where they come from: sinks, and sources other than dynprof's own calls."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, NamedTuple

from dynprof.runtime.process_hooks import call_in_child

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 156
"""Longest message in a trace, in bytes: the limit of the Ascend PyTorch Profiler."""
MAX_BYTES_SUBSCRIBED = 255
"""Longest message for a subscriber, in bytes: the limit of Ascend's MSPTI."""
ALWAYS_SHORT_CHARS = MAX_BYTES // 4
"""A message with fewer characters is always short: a character has at most four bytes."""


class Range(NamedTuple):
    """A range that has begun.

    Attributes:
        message: The script's name for it.
        domain: The group of marks that the config can keep or leave out.
        thread: The system's id of the thread that began it.
        began_ns: Its start, in ns since the epoch.
        number: The number by which the script ends it, from 1; 0 for a pushed range, which nests
            in its thread's open ranges.
        stream: The device's stream, as the script gave it; None where it gave none.
    """

    message: str
    domain: str
    thread: int
    began_ns: int
    number: int
    stream: object = None


class Sink:
    """Receives marks and ranges, on the thread that sets them; must be fast.

    Attributes:
        max_bytes: Longest message that it receives, in bytes.
        wants_begins: Whether it also receives the start of ranges, with messages of usual length.
        only_streams: Whether it receives only marks and ranges with a stream.
    """

    max_bytes = MAX_BYTES
    wants_begins = False
    only_streams = False

    def mark(self, message: str, domain: str, stream: object = None) -> None:
        """Record a moment: now."""

    def marker(self) -> Callable[[str, str], None]:
        """Return the function that records a moment without a stream, while this sink is added."""
        return self.mark

    def taker(self) -> Callable[[tuple[str, str, int, int]], object] | None:
        """Return a function that takes each moment without a stream as a ready tuple.

        The tuple has the message, domain, thread and time in ns. None where the sink needs
        :meth:`mark` to be called.
        """
        return None

    def begin(self, begun: Range) -> None:
        """Record the start of a range: now."""

    def end(self, ended: Range) -> None:
        """Record the end of a range: now. It may have begun before this sink was added."""


class Sinks:
    """The added sinks.

    Attributes:
        all: Sinks for messages of usual length without a stream.
        marks: The functions that record a moment in each sink of ``all``.
        take: The ``taker`` of the only sink of ``all``; None where there is none.
        on_streams: Sinks for messages of usual length with a stream: every added sink.
        of_long: Sinks for longer messages.
        of_begins: Sinks for the start of ranges without a stream.
        longest: Longest message that a sink takes, in bytes.
        before_add: Called before a sink is added, so that automatic marks find the functions to
            wrap; returns whether it found them. None for no call.
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
        """Add a sink."""
        if self.before_add:
            self.before_add()
        with self._lock:
            self._set((*self.on_streams, sink))

    def remove(self, sink: Sink) -> None:
        """Remove a sink."""
        with self._lock:
            self._set(tuple(other for other in self.on_streams if other is not sink))

    def for_message(self, message: str, stream: object) -> tuple[Sink, ...]:
        """Return the sinks that take a message."""
        if len(message) < ALWAYS_SHORT_CHARS or is_short(message):
            return self.all if stream is None else self.on_streams
        return self.of_long

    def for_begin(self, begun: Range) -> tuple[Sink, ...]:
        """Return the sinks that take the start of a range."""
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

    def reset(self) -> None:
        """Remove all sinks in a forked child: they belong to its parent."""
        self._lock = threading.RLock()
        self._set(())


SINKS = Sinks()
"""The process's sinks."""
call_in_child(SINKS.reset)


def is_short(message: str, most: int = MAX_BYTES) -> bool:
    """Return whether a message has at most ``most`` bytes."""
    return len(message) < ALWAYS_SHORT_CHARS or len(message.encode(errors="replace")) <= most


class Source:
    """Intercepts a library's functions while it has a sink.

    Unlike marks of ``dynprof.mstx``, these go to no subscriber and to no other vendor's tools.

    Attributes:
        domain: The domain of its marks.
    """

    domain = ""

    def __init__(self) -> None:
        self.reset()
        _all.add(self)

    def reset(self) -> None:
        """Drop all sinks, as in a child that was just forked."""
        self._sinks: tuple[Sink, ...] = ()
        self._lock = threading.RLock()
        self._forget_open()

    def add(self, sink: Sink) -> None:
        """Add a sink; it receives the end of ranges that are already open."""
        with self._lock:
            self._listen()
            self._sinks = (*self._sinks, sink)

    def remove(self, sink: Sink) -> list[Range]:
        """Remove a sink; the first call returns the open ranges."""
        with self._lock:
            if sink not in self._sinks:
                return []
            found = self._all_open()
            self._sinks = tuple(other for other in self._sinks if other is not sink)
            if not self._sinks:
                self._stop_listening()
                self._forget_open()
        return found

    def _listen(self) -> None:
        """Install the wrappers, where they are not installed yet."""

    def _stop_listening(self) -> None:
        """Restore the original functions."""

    def _all_open(self) -> list[Range]:
        """Return the open ranges whose start was seen."""
        return []

    def _forget_open(self) -> None:
        """Drop the open ranges."""

    def _send_mark(self, message: str) -> None:
        for sink in self._sinks:
            sink.mark(message, self.domain)

    def _send_end(self, ended: Range) -> None:
        for sink in self._sinks:
            sink.end(ended)

    def _send_begin(self, begun: Range) -> None:
        for sink in self._sinks:
            sink.begin(begun)


_all: weakref.WeakSet[Source] = weakref.WeakSet()


def _reset_in_child() -> None:
    for source in list(_all):
        source.reset()


call_in_child(_reset_in_child)

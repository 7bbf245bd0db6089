"""Who hears of marks: the tracks of open windows, subscribers, another vendor's tools."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_BYTES = 156
"""Of a message in a trace; what the Ascend PyTorch Profiler takes of it."""
MAX_BYTES_SUBSCRIBED = 255
"""Of one for a subscriber, as Ascend's MSPTI takes it."""
_SURELY_SHORT = MAX_BYTES // 4
"""A character has no more than four bytes."""


class Range(NamedTuple):
    """A range that has begun.

    Attributes:
        message: What the script calls it.
        domain: A group of marks that the config can keep or leave out.
        thread: The system's number of the thread that began it.
        began_ns: When, in ns since the epoch.
        number: From 1, what the script ends it by; 0 where it lies inside those that were open on
            its thread.
    """

    message: str
    domain: str
    thread: int
    began_ns: int
    number: int


class Sink:
    """Hears of marks and ranges, on the thread that sets them; must be fast.

    Attributes:
        max_bytes: Of the messages that it takes; it does not hear of longer ones.
    """

    max_bytes = MAX_BYTES

    def mark(self, message: str, domain: str) -> None:
        """Note a moment: now."""

    def end(self, ended: Range) -> None:
        """Note its end: now. It may have begun before this sink was plugged in."""


class Sinks:
    """Those that are plugged in.

    Attributes:
        all: Of messages of a usual length.
        of_long: Of those that only some of them take.
        longest: Bytes of the longest message that any takes.
        before_plug: Is called before one is plugged in; None for nothing.
    """

    before_plug: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.all: tuple[Sink, ...] = ()
        self.of_long: tuple[Sink, ...] = ()
        self.longest = MAX_BYTES
        self._lock = threading.RLock()

    def plug(self, sink: Sink) -> None:
        """Let one hear of marks."""
        if self.before_plug:
            self.before_plug()
        with self._lock:
            self._set((*self.all, sink))

    def unplug(self, sink: Sink) -> None:
        """Let it hear of none any more."""
        with self._lock:
            self._set(tuple(other for other in self.all if other is not sink))

    def for_message(self, message: str) -> tuple[Sink, ...]:
        """Return those that take a message."""
        return self.all if is_short(message) else self.of_long

    def _set(self, sinks: tuple[Sink, ...]) -> None:
        self.all = sinks
        self.of_long = tuple(sink for sink in sinks if sink.max_bytes > MAX_BYTES)
        self.longest = max([MAX_BYTES, *(sink.max_bytes for sink in sinks)])

    def forget(self) -> None:
        """Let none hear of marks in a forked child: what its parent records is not of it."""
        self._lock = threading.RLock()
        self._set(())


SINKS = Sinks()
"""The process has one set of them."""
os.register_at_fork(after_in_child=SINKS.forget)


def is_short(message: str, most: int = MAX_BYTES) -> bool:
    """Return whether a message has no more bytes than that."""
    return len(message) < _SURELY_SHORT or len(message.encode(errors="replace")) <= most

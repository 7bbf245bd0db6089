"""Marks and ranges, delivered while the script runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.marks.sinks import MAX_BYTES_SUBSCRIBED, SINKS, Sink
from dynprof.wall import StderrNotes, Wall

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from dynprof.marks.sinks import Range


@dataclass(frozen=True)
class Marker:
    """A moment, or a range that has ended.

    Attributes:
        message: What the script calls it.
        domain: The group it stands in.
        thread: The system's number of the thread that set it.
        began_ns: When, in ns since the epoch.
        ended_ns: The same for a moment.
    """

    message: str
    domain: str
    thread: int
    began_ns: int
    ended_ns: int


class Subscription(Sink):
    """Hands markers to a function, on the thread that sets them; ends as a context manager does.

    Args:
        callback: Is given each, but for those that it sets itself. What it raises is said once and
            hurts nobody.
    """

    max_bytes = MAX_BYTES_SUBSCRIBED

    def __init__(self, callback: Callable[[Marker], object]) -> None:
        self._callback, self._wall = callback, Wall(StderrNotes())
        self._delivering = threading.local()
        SINKS.plug(self)

    def mark(self, message: str, domain: str, stream: object = None) -> None:  # noqa: ARG002
        """Deliver a moment."""
        now_ns = time.time_ns()
        self._deliver(Marker(message, domain, threading.get_native_id(), now_ns, now_ns))

    def end(self, ended: Range) -> None:
        """Deliver a range."""
        self._deliver(
            Marker(ended.message, ended.domain, ended.thread, ended.began_ns, time.time_ns())
        )

    def cancel(self) -> None:
        """Deliver no more."""
        SINKS.unplug(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _deliver(self, marker: Marker) -> None:
        if vars(self._delivering):
            return  # the callback sets marks itself
        self._delivering.now = True
        try:
            if self._wall.attempt("the subscriber", lambda: self._callback(marker)):
                self.cancel()
        finally:  # a signal handler of the script's may raise
            del self._delivering.now

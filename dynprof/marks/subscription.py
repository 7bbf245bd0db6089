"""Marks and ranges, delivered while the script runs."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.marks.native.library import native_marks
from dynprof.marks.sinks import MAX_BYTES_SUBSCRIBED, SINKS, Sink
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.plural import counted
from dynprof.runtime.standard_streams import warn_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from dynprof.marks.native.library import Listener, NativeMark
    from dynprof.marks.sinks import Range

_DRAIN_S = 1.0
"""Longest wait of ``cancel()`` for C's last marks; a callback may need a lock of the caller."""
_COUNTING_S = 0.5
"""Longest wait of ``cancel()`` after that, while the undelivered marks are counted."""


@dataclass(frozen=True)
class Marker:
    """A moment, or a range that has ended.

    Attributes:
        message: The script's name for it.
        domain: Its group of marks.
        thread: The system's id of the thread that set it.
        began_ns: Its start, in ns since the epoch.
        ended_ns: Its end, in ns since the epoch; equals ``began_ns`` for a moment.
    """

    message: str
    domain: str
    thread: int
    began_ns: int
    ended_ns: int


class Subscription(Sink):
    """Passes markers to a function; also a context manager, which ends it.

    Python's markers arrive on the thread that sets them, C's markers on a thread of dynprof.

    Args:
        callback: Receives each marker, except those that it sets itself. Its exception is reported
            once, and does not reach the script.
    """

    max_bytes = MAX_BYTES_SUBSCRIBED

    def __init__(self, callback: Callable[[Marker], object]) -> None:
        self._callback, self._boundary = callback, ErrorBoundary(StderrNotes())
        self._delivering = threading.local()
        self._native, self._is_over = native_marks(), False
        self._skipped = 0
        self._listener: Listener | None = None
        SINKS.add(self)
        if self._native:
            self._boundary.attempt("listening to marks of C", self._listen)

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
        """Deliver C's marks so far, then stop."""
        SINKS.remove(self)
        listener, self._listener = self._listener, None
        if self._native and listener:
            self._native.remove(listener)
            if not vars(self._delivering):  # the callback itself may cancel
                self._warn_lost(listener)
        self._is_over = True

    def _warn_lost(self, listener: Listener) -> None:
        """Wait until C's last marks are delivered or counted; warn of lost marks."""
        lost = []
        in_time = listener.wait_drained(_DRAIN_S)
        self._is_over = True
        if not in_time and not listener.wait_drained(_COUNTING_S):
            lost.append("the callback does not return: all marks of C since are lost")
        if listener.dropped:
            lost.append(
                f"{counted(listener.dropped, 'mark')} of C were dropped: the queue was full"
            )
        if self._skipped:
            waiting = f"{counted(self._skipped, 'mark')} of C were not delivered"
            lost.append(f"{waiting} within {_DRAIN_S:g} s of the end and are lost")
        if lost:
            text = "; ".join([*lost, "a faster callback loses fewer"])
            warn_script(f"mstx.subscribe(): {text}")

    def _listen(self) -> None:
        if self._native:
            self._listener = self._native.listen(self._take, self.max_bytes)

    def _take(self, mark: NativeMark) -> None:
        """Deliver a mark from C, unless the callback itself set it."""
        if mark.thread == threading.get_native_id():
            return
        if self._is_over:
            self._skipped += 1
        else:
            self._deliver(Marker(*mark[:5]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _deliver(self, marker: Marker) -> None:
        if vars(self._delivering):
            return  # the callback sets marks itself
        self._delivering.now = True
        try:
            if self._boundary.attempt("the subscriber", lambda: self._callback(marker)):
                self.cancel()
        finally:
            del self._delivering.now

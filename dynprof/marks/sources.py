"""Sources of marks that a script sets through other libraries."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from dynprof.runtime.process_hooks import call_in_child

if TYPE_CHECKING:
    from dynprof.marks.sinks import Range, Sink


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
        """Return the open ranges whose begin was seen."""
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

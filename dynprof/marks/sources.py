"""Marks that a script sets through functions of others, for whoever asks for them."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from dynprof.runtime.forked_child import forget_in_child

if TYPE_CHECKING:
    from dynprof.marks.sinks import Range, Sink


class Source:
    """Listens to somebody's functions while a sink is plugged in, and to nothing else.

    Unlike marks of ``dynprof.mstx``, these go to no subscriber, and to no other vendor's tools.

    Attributes:
        domain: What its marks stand in.
    """

    domain = ""

    def __init__(self) -> None:
        self.forget()
        _all.add(self)

    def forget(self) -> None:
        """Tell nobody, as in a child that was just forked."""
        self._sinks: tuple[Sink, ...] = ()
        self._lock = threading.RLock()
        self._forget_open()

    def add(self, sink: Sink) -> None:
        """Let one hear of marks; of ranges that are open already, once they end."""
        with self._lock:
            self._listen()
            self._sinks = (*self._sinks, sink)

    def remove(self, sink: Sink) -> list[Range]:
        """Let it hear of none any more; return the ranges that are open, the first time."""
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
        """Put what listens in its place, where it is not there yet."""

    def _stop_listening(self) -> None:
        """Put back what was there."""

    def _all_open(self) -> list[Range]:
        """Return the ranges that have begun while it listened."""
        return []

    def _forget_open(self) -> None:
        """Know of no open ranges."""

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


def _forget_in_child() -> None:
    for source in list(_all):
        source.forget()


forget_in_child(_forget_in_child)

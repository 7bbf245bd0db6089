"""The script's own marks and ranges, as they stand in the trace."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

import dynprof.mstx as mstx
from dynprof.companions.base import Companion

if TYPE_CHECKING:
    from collections.abc import Collection

    from dynprof.companions.base import Event, Events


class MarkTrack(Companion):
    """Takes the marks of :mod:`dynprof.mstx`.

    Args:
        include: The domains to keep; empty for all.
        exclude: The domains to leave out; ignored where some are included.
    """

    def __init__(self, include: Collection[str], exclude: Collection[str]) -> None:
        self._include, self._exclude = frozenset(include), frozenset(exclude)
        self._found: list[Event] = []
        self._open: dict[int, Event] = {}
        self._began_ns = 0

    def start(self) -> None:
        """Take marks."""
        self._began_ns = time.time_ns()
        mstx.plug(self)

    def stop(self) -> None:
        """Take no more."""
        mstx.unplug(self)

    def leave_child(self) -> None:
        """Let the child's marks go nowhere: they are never saved there."""

    def events(self) -> Events:
        """Return the marks, and the ranges that ended."""
        found, self._found = self._found, []
        return found

    def mark(self, message: str, domain: str) -> None:
        """Note a moment."""
        if self._keeps(domain):
            self._found.append({**_event("i", message, domain), "s": "t"})

    def begin(self, number: int, message: str, domain: str) -> None:
        """Note the beginning of a range."""
        if self._keeps(domain):
            self._open[number] = {**_event("b", message, domain), "id": number}

    def end(self, number: int) -> None:
        """Note the end of a range."""
        if begun := self._open.pop(number, None):
            self._found += [begun, {**begun, "ph": "e", "ts": time.time_ns()}]

    def nested(self, message: str, domain: str, began_ns: int) -> None:
        """Note a range on this thread; what of it came before the window is left out."""
        if self._keeps(domain):
            since_ns, now_ns = max(began_ns, self._began_ns), time.time_ns()
            event = _event("X", message, domain)
            self._found.append({**event, "ts": since_ns, "dur": now_ns - since_ns})

    def _keeps(self, domain: str) -> bool:
        return domain in self._include if self._include else domain not in self._exclude


def _event(phase: str, message: str, domain: str) -> Event:
    return {
        "ph": phase,
        "cat": "user_annotation" if phase == "X" else "mstx",
        "name": message,
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "ts": time.time_ns(),
        "args": {"domain": domain},
    }

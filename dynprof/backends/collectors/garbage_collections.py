"""Python's garbage collections, on their own track."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from typing import TYPE_CHECKING

from dynprof.backends.collectors.base import Collector, named_track

if TYPE_CHECKING:
    from dynprof.backends.collectors.base import Event, Events

TRACK = 0x6763_0000


class CollectionTrack(Collector):
    """Records long garbage collections.

    Args:
        threshold_ms: Shortest collection to keep, in ms; 0 keeps all.
    """

    def __init__(self, threshold_ms: float) -> None:
        self._threshold_ns = threshold_ms * 1e6
        self._began_ns = 0
        self._found: list[Event] = []

    def start(self) -> None:
        """Register a callback for collections."""
        gc.callbacks.append(self._note)

    def stop(self) -> None:
        """Remove the callback."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._note)

    abandon = stop

    def events(self) -> Events:
        """Return the collections."""
        found, self._found = self._found, []
        return [named_track(TRACK, "garbage collections"), *found]

    def _note(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.time_ns()
            return
        took_ns = time.time_ns() - self._began_ns
        if self._began_ns and took_ns >= self._threshold_ns:
            self._found.append(
                {
                    "ph": "X",
                    "cat": "gc",
                    "name": f"collection of generation {info['generation']}",
                    "pid": os.getpid(),
                    "tid": TRACK,
                    "ts": self._began_ns,
                    "dur": took_ns,
                    "args": {**info, "thread": threading.get_native_id()},
                }
            )

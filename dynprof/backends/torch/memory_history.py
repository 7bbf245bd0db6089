"""The history of a device's memory over a window, in the format of torch's memory viewer."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from dynprof.backends.collectors import Collector, Unavailable
from dynprof.backends.torch.features import is_used
from dynprof.runtime.output import atomic_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_ENTRIES = 1_000_000
"""Most allocations and releases kept; the oldest are dropped first."""


class MemoryHistory(Collector):
    """Records the history of a caching allocator.

    Args:
        memory: ``torch.cuda.memory`` or its equivalent.
        is_recording: Whether the script records a history itself, which is left alone.
    """

    def __init__(self, memory: Any, *, is_recording: bool) -> None:
        self._memory, self._script_records = memory, is_recording
        self._running = False
        self._snapshot: Any = None

    @classmethod
    def of_devices(cls, activities: tuple[str, ...]) -> Iterator[Collector]:
        """Yield one for each recorded device; a device without a history only reports that."""
        import torch

        for activity in (one for one in activities if one != "CPU"):
            name = activity.lower()
            memory = getattr(getattr(torch, name, None), "memory", None)
            if not hasattr(memory, "_record_memory_history"):
                yield Unavailable(
                    f"memory_snapshot: {activity} keeps no history of its memory here"
                )
            elif not is_used(torch, activity):
                # torch 2.11 crashes if asked before its allocator exists
                yield Unavailable(f"memory_snapshot: this process has not used {activity} yet")
            else:
                is_enabled = getattr(torch._C, f"_{name}_isHistoryEnabled", None)
                yield cls(memory, is_recording=bool(is_enabled and is_enabled()))

    def start(self) -> None:
        """Have the allocator keep a history."""
        if not self._script_records:
            self._memory._record_memory_history(stacks="python", max_entries=MAX_ENTRIES)
        self._running = True

    def stop(self) -> None:
        """Read the history, which is lost when it is switched off."""
        if self._running:
            self._running = False
            self._snapshot = self._memory._snapshot()
            if not self._script_records:
                self._memory._record_memory_history(enabled=None)

    def discard(self) -> None:
        """Switch the history off."""
        if self._running and not self._script_records:
            self._memory._record_memory_history(enabled=None)
        self._running, self._snapshot = False, None

    def abandon(self) -> None:
        """Do nothing: a device does not survive a fork."""

    def save(self, stem: Path) -> tuple[str, ...]:
        """Write the snapshot, pickled for the viewer."""
        snapshot, self._snapshot = self._snapshot, None
        with atomic_file(self.path(stem)) as file:
            pickle.dump(snapshot, file)
        return ()

    @staticmethod
    def path(stem: Path) -> Path:
        """Return the file of :meth:`save`."""
        return stem.with_name(f"{stem.name}.memory_snapshot.pickle")

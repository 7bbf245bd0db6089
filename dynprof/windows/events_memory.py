"""How much memory the events of an open window take, as far as can be told from outside."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynprof.clock import time

if TYPE_CHECKING:
    from dynprof.windows.this_process import ThisProcess

    Samples = list[tuple[int, float]]

FIRST_S = 1.0
"""A window of less can hardly have recorded too much."""
COST = 100.0
"""A look is followed by none for so many times what it took."""
LEAST, MOST = 8, 256
"""Fewer looks tell nothing; of more every second one is forgotten, and from then on left out."""
SURE = 4.0
"""So many standard errors what is told is above what chance would make of batches that differ."""


class EventsMemory:
    """Told by how memory grows from one end of a step to the next.

    Events add as much in each step as in the one before, while what the training has there goes up
    and down with its batches, or is freed at once.

    Args:
        opened_s: Monotonic time of opening.
    """

    def __init__(self, opened_s: float) -> None:
        self._due_s = opened_s + FIRST_S
        self._looks, self._every = 0, 1
        self._in_use: list[tuple[int, float | None]] = []
        self._resident: Samples = []

    def look(self, process: ThisProcess, done: int, now_s: float, resident_mb: float) -> float:
        """Return how many MB (10^6 bytes) they are at least; 0 where that cannot be told yet.

        Args:
            process: Which knows what is allocated.
            done: How many steps are recorded.
            now_s: Monotonic time.
            resident_mb: The resident memory, which counts where nothing better is known.
        """
        if now_s < self._due_s or (self._resident and done <= self._resident[-1][0]):
            return 0.0
        self._looks += 1
        if self._looks % self._every:
            return 0.0
        began_s = time.perf_counter()
        self._in_use.append((done, process.in_use_mb()))
        self._resident.append((done, resident_mb))
        events_mb = _added(self._samples(), done)
        self._due_s = now_s + COST * (time.perf_counter() - began_s)
        return events_mb

    def _samples(self) -> Samples:
        """Return what is allocated, unless the allocator cannot tell, or is not the one in use."""
        if len(self._resident) > MOST:
            self._in_use, self._resident = self._in_use[::2], self._resident[::2]
            self._every *= 2
        allocated = [(done, mb) for done, mb in self._in_use if mb is not None]
        is_told = len(allocated) == len(self._resident) and len({mb for _, mb in allocated}) > 1
        return allocated if is_told else self._resident


def _added(samples: Samples, done: int) -> float:
    """Return what the events of all steps are: no more than by what memory has grown meanwhile.

    The later half is looked at by itself, too: the training may have freed much in the first.
    """
    later = samples[len(samples) // 2 :]
    rate_mb = max(growth(samples), growth(later), 0.0)
    grown_mb = max(mb for _, mb in later) - min(mb for _, mb in samples)
    return min(rate_mb * done, rate_mb * samples[0][0] + grown_mb)


def growth(samples: Samples) -> float:
    """Return by how many MB a step memory grows at least: the slope, less what chance may add.

    Args:
        samples: Steps and MB, at least :data:`LEAST`; 0 is returned of fewer.
    """
    if len(samples) < LEAST:
        return 0.0
    count = len(samples)
    mean_step, mean_mb = (sum(column) / count for column in zip(*samples, strict=True))
    steps: float = sum((step - mean_step) ** 2 for step, _ in samples)
    slope: float = sum((step - mean_step) * (mb - mean_mb) for step, mb in samples) / steps
    left: float = sum((mb - mean_mb - slope * (step - mean_step)) ** 2 for step, mb in samples)
    return slope - SURE * math.sqrt(left / (count - 2) / steps)

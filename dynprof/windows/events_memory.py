"""How much memory the events of an open window take, as far as can be told from outside."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dynprof.clock import time

if TYPE_CHECKING:
    from dynprof.windows.this_process import ThisProcess

    Samples = list[tuple[int, float]]

COST = 100.0
"""A look is followed by none for so many times what it took."""
LEAST, MOST = 8, 256
"""Fewer looks tell nothing; of more every second one is forgotten, and from then on left out."""
SURE, SURER = 3.0, 6.0
"""By so many standard errors it has to grow, or chance may have done it: batches that differ, say.
Of few looks by more, as if there were as many fewer again."""


class EventsMemory:
    """Told by how memory grows from one end of a step to the next.

    Events add as much in each step as in the one before, while what the training has there goes up
    and down with its batches, or is freed at once.
    """

    def __init__(self) -> None:
        self._due_s = -math.inf
        self._count, self._every = 0, 1
        self._looks: list[tuple[int, float | None, float]] = []

    def look(self, process: ThisProcess, done: int, now_s: float, resident_mb: float) -> float:
        """Return how many MB (10^6 bytes) they are, most likely; 0 where that is not told yet.

        Args:
            process: Which knows what is allocated.
            done: How many steps are recorded.
            now_s: Monotonic time.
            resident_mb: The resident memory, which counts where nothing better is known.
        """
        if now_s < self._due_s or (self._looks and done <= self._looks[-1][0]):
            return 0.0
        self._count += 1
        if self._count % self._every:
            return 0.0
        began_s = time.perf_counter()
        self._looks.append((done, process.in_use_mb(), resident_mb))
        events_mb = _added(self._samples(), done)
        self._due_s = now_s + COST * (time.perf_counter() - began_s)
        return events_mb

    def _samples(self) -> Samples:
        """Return what is allocated, unless the allocator cannot tell, or is not the one in use."""
        if len(self._looks) > MOST:
            self._looks = self._looks[::2]
            self._every *= 2
        allocated = [(done, mb) for done, mb, _ in self._looks if mb is not None]
        is_told = len(allocated) == len(self._looks) and len({mb for _, mb in allocated}) > 1
        return allocated if is_told else [(done, mb) for done, _, mb in self._looks]


def _added(samples: Samples, done: int) -> float:
    """Return what the events of all steps are: no more than by what memory has grown meanwhile.

    The later half is looked at by itself, too: the training may have freed much in the first. What
    came before that is not seen then, so it may be half of what there is.
    """
    later = samples[len(samples) // 2 :]
    rate_mb = max(growth(samples), growth(later) if len(later) >= 2 * LEAST else 0.0)
    grown_mb = max(mb for _, mb in later) - min(mb for _, mb in samples)
    return min(rate_mb * done, grown_mb)


def growth(samples: Samples) -> float:
    """Return by how many MB a step memory grows; 0 where that may as well be chance.

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
    sure = SURE * (1 + SURER / (count - 2)) * math.sqrt(left / (count - 2) / steps)
    return slope if slope > sure else 0.0

"""How much memory the events of an open window take, as far as can be told from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.clock import time

if TYPE_CHECKING:
    from dynprof.windows.this_process import ThisProcess

FIRST_S = 1.0
"""A window of less can hardly have recorded too much."""
EVERY_S = 0.25
COST = 100.0
"""A look is followed by none for so many times what it took."""


class EventsMemory:
    """Told by what is allocated at the ends of steps, where a training has as much each time.

    Resident memory would be told by what the allocator happens to keep: of a transformer's first
    window with stacks it grew ten times as much as the events.

    Args:
        opened_s: Monotonic time of opening.
    """

    def __init__(self, opened_s: float) -> None:
        self._due_s = opened_s + FIRST_S
        self._first: tuple[int, float] | None = None

    def look(self, process: ThisProcess, done: int, now_s: float, grown_mb: float) -> float:
        """Return how many MB they are; 0 where that is not to be looked at yet.

        Args:
            process: Which knows what is allocated.
            done: How many steps are recorded.
            now_s: Monotonic time.
            grown_mb: By how much the resident memory has grown, where nothing better is known.
        """
        if now_s < self._due_s:
            return 0.0
        began_s = time.perf_counter()
        in_use_mb = process.in_use_mb()
        self._due_s = now_s + max(EVERY_S, COST * (time.perf_counter() - began_s))
        if in_use_mb is None:
            return grown_mb
        if self._first is None or done <= self._first[0]:
            self._first = self._first or (done, in_use_mb)
            return 0.0
        before, before_mb = self._first
        if in_use_mb == before_mb:  # another allocator than the one that was asked
            return grown_mb
        return (in_use_mb - before_mb) / (done - before) * done

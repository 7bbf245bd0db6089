"""Of several optimizers, the one whose step ends an iteration of the training."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from typing import Generic, TypeVar

Key = TypeVar("Key")

LEAST_FIRES = 8
"""So many steps of optimizers are watched at least: a second optimizer may come a moment later."""
MOST_FIRES = 128
"""After so many without a cycle that repeats, there is none to be found."""
CLEARLY = 2.0
"""What follows the last step of an iteration, loading and a forward pass, takes so much longer."""


class IterationEnds(Generic[Key]):
    """Watches optimizers step, until it knows the cycle in which they do.

    A GAN's critic steps five times for each of its generator, an outer optimizer steps after those
    that it holds. A cycle is known once all that were seen stepped in it and it was seen twice; its
    iteration ends with the one that steps least often. Of several such ones it is that after which
    clearly the most time passes, else the one that was seen last at first.
    """

    def __init__(self) -> None:
        self._fires: deque[tuple[Key, float]] = deque(maxlen=MOST_FIRES)
        self._order: list[Key] = []

    @property
    def kinds(self) -> int:
        """How many optimizers were seen to step."""
        return len(self._order)

    def fired(self, key: Key, now_s: float) -> Key | None:
        """Note a step; return whose step ends an iteration once that is known.

        Args:
            key: Whose step it was.
            now_s: Monotonic time.
        """
        if key not in self._order:
            self._order.append(key)
        self._fires.append((key, now_s))
        if len(self._fires) < LEAST_FIRES:
            return None
        keys = [key for key, _ in self._fires]
        period = _period(keys, len(self._order))
        if period:
            return self._last_of(keys[-period:])
        return Counter(keys).most_common(1)[0][0] if len(keys) == MOST_FIRES else None

    def _last_of(self, cycle: list[Key]) -> Key:
        counts = Counter(cycle)
        least = min(counts.values())
        rare = [key for key in self._order if counts[key] == least]
        pauses = sorted(((self._pause_s(key), key) for key in rare), key=lambda pair: pair[0])
        if len(pauses) > 1 and pauses[-1][0] < CLEARLY * pauses[-2][0]:
            return rare[-1]
        return pauses[-1][1]

    def _pause_s(self, key: Key) -> float:
        """Return how long after a step of this one the next one comes, in the median."""
        fires = list(self._fires)
        pauses = sorted(b[1] - a[1] for a, b in itertools.pairwise(fires) if a[0] == key)
        return pauses[len(pauses) // 2]


def _period(keys: list[Key], kinds: int) -> int:
    """Return how long the shortest cycle is that all stepped in and was seen twice, or 0."""
    for length in range(kinds, len(keys) // 2 + 1):
        last = keys[-length:]
        if last == keys[-2 * length : -length] and len(set(last)) == kinds:
            return length
    return 0

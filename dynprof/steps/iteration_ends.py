"""Of several optimizers, the one whose step ends an iteration of the training."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")

LEAST_FIRES = 8
"""So many steps of optimizers are watched at least: a second optimizer may come a moment later."""
MOST_FIRES = 128
"""After so many without a cycle that repeats, there is none to be found, of a few optimizers."""
CYCLES = 4
"""Of many, as where each parameter has its own, they are watched for so many steps of each."""
MOST_FIRES_OF_MANY = 4096
"""But for no more than that."""
_LAST = 4
CLEARLY = 2.0
"""What follows the last step of an iteration, loading and a forward pass, takes so much longer."""


@dataclass(frozen=True)
class Ending(Generic[Key]):
    """Whose step ends an iteration.

    Attributes:
        key: Whose.
        others: How many steps of others come between two of it; empty where any number does.
        since: How many came after the last one of it.
    """

    key: Key
    others: frozenset[int]
    since: int


class IterationEnds(Generic[Key]):
    """Watches optimizers step, until it knows the cycle in which they do.

    A GAN's critic steps five times for each of its generator, an outer optimizer steps after those
    that it holds. A cycle is known once all that were seen stepped in it and it was seen twice; its
    iteration ends with the one that steps least often. Of several such ones it is that after which
    clearly the most time passes, else the one that was seen last at first.

    Args:
        known: Who was found to end iterations so far, and goes on to where others might as well.
            Then :data:`MOST_FIRES` are watched, of which the latter half has to keep to the cycle:
            what steps at random looks like one for a moment.
    """

    def __init__(self, known: Key | None = None) -> None:
        self.thorough, self._known = known is not None, known
        self._least = MOST_FIRES if self.thorough else LEAST_FIRES
        self._fires: deque[tuple[Key, float]] = deque()
        self._order: list[Key] = []

    @property
    def kinds(self) -> int:
        """How many optimizers were seen to step."""
        return len(self._order)

    def fired(self, key: Key, now_s: float) -> Ending[Key] | None:
        """Note a step; return whose step ends an iteration once that is known.

        Args:
            key: Whose step it was.
            now_s: Monotonic time.
        """
        if key not in self._order:
            self._order.append(key)
        self._fires.append((key, now_s))
        most = min(max(MOST_FIRES, CYCLES * self.kinds), MOST_FIRES_OF_MANY)
        if len(self._fires) > most:
            self._fires.popleft()
        if len(self._fires) < max(self._least, self.kinds):
            return None
        keys = [key for key, _ in self._fires]
        if period := _period(keys, len(self._order), thorough=self.thorough):
            cycle = keys[-period:]
            last = self._last_of(cycle)
            return Ending(last, _between(last, cycle), _since(last, keys))
        if len(keys) < most:
            return None
        frequent = Counter(keys).most_common(1)[0][0]
        return Ending(frequent, frozenset(), _since(frequent, keys))

    def _last_of(self, cycle: list[Key]) -> Key:
        counts = Counter(cycle)
        least = min(counts.values())
        seen = Counter(key for key, _ in self._fires)
        rare = [key for key in self._order if counts[key] == least]
        most = max(seen[key] for key in rare)
        rare = [key for key in rare if seen[key] >= most - 1]  # the others are left out at times
        if self._known in rare:
            return self._known
        pauses = sorted(((self._pause_s(key), key) for key in rare), key=lambda pair: pair[0])
        if len(pauses) > 1 and pauses[-1][0] < CLEARLY * pauses[-2][0]:
            return rare[-1]
        return pauses[-1][1]

    def _pause_s(self, key: Key) -> float:
        """Return how long after a step of this one the next one comes, in the median."""
        fires = list(self._fires)
        pauses = sorted(b[1] - a[1] for a, b in itertools.pairwise(fires) if a[0] == key)
        return pauses[len(pauses) // 2]


def _period(keys: list[Key], kinds: int, *, thorough: bool) -> int:
    """Return how long the shortest cycle is that all stepped in and was seen twice, or 0.

    Args:
        keys: Who stepped, one after the other.
        kinds: How many there are.
        thorough: It has to be seen three times, and the latter half of all has to keep to it.
    """
    for length in range(kinds, len(keys) // (3 if thorough else 2) + 1):
        if keys[-_LAST:] != keys[-_LAST - length : -length]:  # most lengths are no cycle's
            continue
        last = keys[-max(2 * length, len(keys) // 2) :] if thorough else keys[-length:]
        if last == keys[-len(last) - length : -length] and len(set(last)) == kinds:
            return length
    return 0


def _between(key: Key, cycle: list[Key]) -> frozenset[int]:
    """Return how many others there are between one and the next in a cycle that goes on and on."""
    places = [place for place, one in enumerate(cycle * 2) if one == key]
    return frozenset(b - a - 1 for a, b in itertools.pairwise(places))


def _since(key: Key, keys: list[Key]) -> int:
    return keys[::-1].index(key)

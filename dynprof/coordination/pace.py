"""How often something is looked for, on either side of an agreement."""

from __future__ import annotations

FIRST_PAUSE_S = 0.001
"""Between two looks where something has just happened."""
BUSY_LOOKS_A_SECOND, BUSY_S = 10_000, 0.5
"""There are so many then, in all, but each looks after so long at the latest."""
GROWTH, SLOW_GROWTH = 1.5, 1.1
"""Of pauses; who listens for the next message of an agreement, which comes soon, goes slowly."""


def first_pause_s(asking: float) -> float:
    """Return that of so many who look for the same thing."""
    return min(BUSY_S, max(FIRST_PAUSE_S, asking / BUSY_LOOKS_A_SECOND))


class Pace:
    """Pauses that grow: short where something has just happened.

    Args:
        first_s: The first.
        longest_s: The longest.
        growth: Of each over the one before.
    """

    def __init__(self, first_s: float, longest_s: float, growth: float = GROWTH) -> None:
        self._first_s, self._longest_s = min(first_s, longest_s), longest_s
        self._growth = growth
        self._next_s = self._first_s

    @property
    def is_longest(self) -> bool:
        """Whether they grow no more."""
        return self._next_s == self._longest_s

    def begin(self) -> None:
        """Begin with the first again."""
        self._next_s = self._first_s

    def pause_s(self) -> float:
        """Return the next."""
        pause_s, self._next_s = self._next_s, min(self._next_s * self._growth, self._longest_s)
        return pause_s

"""Which request of this rank is which of the leader's, and of which the end is news to him."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from dynprof.journal.edit_outcomes import MOST

if TYPE_CHECKING:
    from collections.abc import Collection

NEWS_S = 300.0
"""So long the end of a window is news: the leader may not have heard what was said too late."""


class KnownNumbers:
    """The numbers of the newest requests that the leader has spoken of, counted by him and here."""

    def __init__(self) -> None:
        self._own: dict[int, int] = {}
        self._owed: dict[int, float] = {}  # when the end was said; never yet: infinite

    def know(self, leaders: int, own: int) -> None:
        """Know which request is meant; what has a higher number was another leader's."""
        before = [(number, mine) for number, mine in self._own.items() if number < leaders]
        self._own = dict([*before, (leaders, own)][-MOST:])
        self._owed = {n: s for n, s in self._owed.items() if n in self._own and n != leaders}

    def own(self, leaders: int) -> int | None:
        """Return the number here; None where nothing is known of it."""
        return self._own.get(leaders)

    def all_own(self, leaders: Collection[tuple[int, int]]) -> set[int]:
        """Return the numbers here of those that are known, from one to another."""
        known = self._own.items()
        return {mine for low, high in leaders for number, mine in known if low <= number <= high}

    def owe(self, leaders: int) -> None:
        """Know that its end is to be said."""
        self._owed[leaders] = math.inf

    def is_said(self, leaders: int) -> None:
        """Know that it was, now."""
        if leaders in self._owed:
            self._owed[leaders] = time.monotonic()

    def news(self) -> set[int]:
        """Return those whose end may be news, by the leader's numbers."""
        before_s = time.monotonic() - NEWS_S
        return {number for number, said_s in self._owed.items() if said_s > before_s}

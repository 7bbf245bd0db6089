"""The ranks that a config selects: ``"all"``, ``"0-3,8"``, ``"every 64th"`` or ``[0, 1, 8]``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.runtime.plural import listed_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable

CHOSEN = ("one per host", "slowest", "median")
"""Criteria that only ranks that agree can evaluate."""
_EVERY = re.compile(r"every ([0-9]+)(?:st|nd|rd|th)")
_ALL = ((0, 1 << 62),)


@dataclass(frozen=True)
class RankSet:
    """A set of ranks as closed intervals, so that ``"0-99999"`` costs as little as ``"0"``.

    Attributes:
        intervals: The first and the last rank of each interval.
        every: Numbers; each adds the ranks that it divides.
        chosen: Criteria by which running ranks are chosen, of :data:`CHOSEN`.
    """

    intervals: tuple[tuple[int, int], ...] = ()
    every: tuple[int, ...] = ()
    chosen: tuple[str, ...] = ()

    @classmethod
    def parse(cls, ranks: str | Iterable[int]) -> RankSet:
        """Parse ranks as the config spells them.

        Raises:
            ValueError: An interval runs backwards.
        """
        if ranks == "all":
            return cls(_ALL)
        if not isinstance(ranks, str):
            return cls(tuple((rank, rank) for rank in sorted(set(ranks))))
        parts = [part.strip() for part in re.split(",| and ", ranks)]
        every = [int(found[1]) for part in parts if (found := _EVERY.fullmatch(part))]
        chosen = [part for part in parts if part in CHOSEN]
        spans = [part for part in parts if part not in CHOSEN and not _EVERY.fullmatch(part)]
        return cls(tuple(map(_interval, spans)), tuple(every), tuple(chosen))

    def __contains__(self, rank: int) -> bool:
        spans = any(low <= rank <= high for low, high in self.intervals)
        return spans or any(rank % number == 0 for number in self.every)

    def may_include(self, rank: int) -> bool:
        """Return whether the set has a rank, or may choose it."""
        return bool(self.chosen) or rank in self

    def beyond(self, size: int) -> RankSet:
        """Return the named ranks that a job of ``size`` ranks does not have; "all" names none."""
        spans = () if self.intervals == _ALL else self.intervals
        return RankSet(tuple((max(low, size), high) for low, high in spans if high >= size))

    def lacking(self, size: int) -> str:
        """Return which named ranks a job of ``size`` ranks does not have; empty if it has all."""
        beyond = self.beyond(size)
        if not beyond.intervals:
            return ""
        has = listed_ranks(range(size)) if size > 1 else "rank 0 only"
        noun = "rank" if str(beyond).isdecimal() else "ranks"
        return f"this job has {has}, no {noun} {beyond}"

    def position(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return the index of a rank in the set and the size of the set.

        With criteria, or for a rank outside the set, both count all ranks of the job.
        """
        if self.chosen or rank not in self:
            return rank, world_size
        asked = [one for one in range(world_size) if one in self]
        return asked.index(rank), len(asked)

    def __str__(self) -> str:
        if self.intervals == _ALL:
            return "all"
        spans = [str(a) if a == b else f"{a}-{b}" for a, b in self.intervals]
        return ",".join([*spans, *map(_every, self.every), *self.chosen]) or "none"


def _interval(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    first, last = int(low), int(high or low)
    if last < first:
        raise ValueError(f'"{text.strip()}" runs backwards; write "{last}-{first}"')
    return first, last


def _every(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"every {number}{'th' if 10 < number % 100 < 14 else ending}"

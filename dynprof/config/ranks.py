"""Which ranks a config asks for: ``"all"``, ``"0-3,8"`` or ``[0, 1, 8]``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class RankSet:
    """Ranks as closed intervals, so that ``"0-99999"`` costs as little as ``"0"``."""

    intervals: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, ranks: str | Iterable[int]) -> RankSet:
        """Read ranks as the config spells them.

        Raises:
            ValueError: An interval runs backwards.
        """
        if ranks == "all":
            return cls(((0, 1 << 62),))
        if not isinstance(ranks, str):
            return cls(tuple((rank, rank) for rank in sorted(set(ranks))))
        return cls(tuple(map(_interval, ranks.split(","))))

    def __contains__(self, rank: int) -> bool:
        return any(low <= rank <= high for low, high in self.intervals)

    def __str__(self) -> str:
        if self.intervals == ((0, 1 << 62),):
            return "all"
        return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in self.intervals) or "none"


def _interval(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    first, last = int(low), int(high or low)
    if last < first:
        raise ValueError(f'"{text.strip()}" runs backwards; write "{last}-{first}"')
    return first, last

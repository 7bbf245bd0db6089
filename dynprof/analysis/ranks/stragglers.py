"""Who keeps others waiting, and from when on that is said."""

from __future__ import annotations

from dataclasses import dataclass

from dynprof.plural import counted

OFTEN = 0.2
"""Who comes last to a smaller share of its collectives is not called a straggler."""
LATE_NS = 1_000_000
"""Who comes less than this after the median is not called late: clocks and threads scatter."""


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for.

    Attributes:
        rank: Its number.
        last: In how many collectives it came last, and late.
        of: How many it took part in, of those that can be compared.
        behind_ns: By how much it came after the median rank, in the middle of those, in ns.
        own_ns: Its mean step time without communication that nothing hides.
        others_ns: The same of the median of the other ranks.
        ranks: How many ranks are compared, with this one.
    """

    rank: int
    last: int
    of: int
    behind_ns: int
    own_ns: int
    others_ns: int
    ranks: int

    @property
    def others(self) -> str:
        """Whose :attr:`others_ns` is."""
        return "the other rank's" if self.ranks == 2 else "the median of the others"

    def __str__(self) -> str:
        return (
            f"rank {self.rank} comes last to {self.last:,} of {counted(self.of, 'collective')}, "
            f"{self.behind_ns / 1e6:.1f} ms after the {'other' if self.ranks == 2 else 'median'} "
            f"rank; its own work takes {self.own_ns / 1e6:.1f} ms a step on average, {self.others} "
            f"{self.others_ns / 1e6:.1f} ms"
        )


@dataclass(frozen=True)
class RankMean:
    """The mean step of one rank; times in ns.

    Attributes:
        rank: Its number.
        length: How long they took.
        computing: For how long kernels, or operators of the host, computed.
        communication: For how long collectives ran.
        overlapped: For how long both did.
    """

    rank: int
    length: float
    computing: float
    communication: float
    overlapped: float

    @property
    def waiting(self) -> float:
        """Communication that nothing hides."""
        return self.communication - self.overlapped

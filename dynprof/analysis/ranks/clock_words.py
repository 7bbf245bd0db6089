"""Sentences about the clocks of ranks that are shown on one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.timeline.breakdown import ms
from dynprof.runtime.plural import listed_ranks

if TYPE_CHECKING:
    from collections.abc import Collection

    from dynprof.analysis.ranks.comparison import Ranks


def clock_words(ranks: Ranks, chosen: list[int]) -> list[str]:
    """Return how far the clocks of some ranks were apart, and for which ranks it is unknown."""
    clocks, hosts = ranks.clocks(), ranks.hosts()
    first = {rank: clocks.get(rank, (rank, 0))[0] for rank in chosen}
    groups = [[r for r in chosen if first[r] == one] for one in sorted(set(first.values()))]
    met = [group for group in groups if len(group) > 1]
    alone = [group[0] for group in groups if len(group) == 1]
    aligned = [group for group in met if len({hosts[rank] for rank in group}) > 1]
    said = [_one_host(group) for group in met if group not in aligned]
    if aligned:
        ahead = [clocks[rank][1] for group in aligned for rank in group]
        said.append(_aligned(max(ahead) - min(ahead), ranks.uncertainty_ns()))
    if len(met) > 1:
        said.append(
            "it is unknown how far the clocks of these are apart, as they share no collective: "
            + "; ".join(map(listed_ranks, met))
        )
    return said + ([_alone(alone, met)] if alone else [])


def _one_host(group: list[int]) -> str:
    return f"{listed_ranks(group)} are of one host, whose clock is used unchanged"


def _aligned(apart_ns: int, uncertainty_ns: int) -> str:
    give_or_take = f", give or take {ms(uncertainty_ns)}" if uncertainty_ns else ""
    if not apart_ns:
        return f"the clocks agree{give_or_take}, by the ends of collectives"
    return (
        f"clocks aligned by the ends of collectives; they were up to {ms(apart_ns)} apart"
        f"{give_or_take}"
    )


def _alone(alone: list[int], met: Collection[list[int]]) -> str:
    used = "its clock is used unchanged"
    if len(alone) > 1:
        used = "their clocks are used unchanged"
    whom = "the others" if met else "each other"
    return f"{listed_ranks(alone)} shared no collective with {whom} that could be matched: {used}"

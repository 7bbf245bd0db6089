"""What only ranks that know of each other can tell: who records, and with what; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.config import RankSet
from dynprof.coordination.messages import Profiler
from dynprof.plural import listed_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dynprof.coordination.messages import Reply


def chosen_ranks(asked: RankSet, replies: Mapping[int, Reply], world_size: int) -> RankSet:
    """Return the ranks by their numbers; who is named by his is among them though he is silent.

    Args:
        asked: What the config says.
        replies: Where each rank is, and how long its steps take.
        world_size: How many ranks the job has.

    Raises:
        ValueError: The slowest is asked for, and no rank knows how long its steps take.
    """
    found = {rank for rank in range(world_size) if rank in asked}
    if "one per host" in asked.chosen:
        first_of = {replies[rank].host: rank for rank in sorted(replies, reverse=True)}
        found |= set(first_of.values())
    by_pace = sorted((one.step_s, rank) for rank, one in replies.items() if one.step_s is not None)
    if not by_pace and {"slowest", "median"} & set(asked.chosen):
        raise ValueError("no rank knows yet how long its steps take; ask once more in some seconds")
    if "slowest" in asked.chosen:
        found.add(by_pace[-1][1])
    if "median" in asked.chosen:
        found.add(by_pace[(len(by_pace) - 1) // 2][1])
    return RankSet.parse(found)


def _why_unlike(replies: Mapping[int, Reply]) -> dict[int, str]:
    """Say what each rank would record with, where that is not the same on all."""
    would = {rank: one.would for rank, one in replies.items() if one.takes_part and one.would}
    if len(set(would.values())) < 2:
        return {}
    return {rank: f"it would record with {profiler}" for rank, profiler in would.items()}


def common_profiler(usable: Collection[tuple[Profiler, ...]]) -> Profiler | None:
    """Return what all ranks can record with; None where there is nothing.

    Args:
        usable: Of each rank, what it prefers first.
    """
    by_name = [{one.backend: one.activities for one in mine} for mine in usable]
    for first in next(iter(usable), ()):
        of_each = [mine.get(first.backend, ()) for mine in by_name]
        shared = tuple(a for a in first.activities if all(a in mine for mine in of_each))
        if shared:
            return Profiler(first.backend, shared)
    return None


def unable(replies: Mapping[int, Reply]) -> dict[int, str]:
    """Say why each rank cannot that cannot, or how what they would record differs."""
    problems = {rank: one.problem for rank, one in replies.items() if one.problem}
    return problems or _why_unlike(replies)


def why_not(unable: Mapping[int, str]) -> tuple[str, ...]:
    """Return each reason once, with the ranks that have it."""
    by_reason: dict[str, list[int]] = {}
    for rank, problem in sorted(unable.items()):
        by_reason.setdefault(problem, []).append(rank)
    return tuple(f"{listed_ranks(ranks)}: {problem}" for problem, ranks in by_reason.items())

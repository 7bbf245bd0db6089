"""Who records, with what, from which step: what is asked, pure functions, and what came of it."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.config import RankSet
from dynprof.ranks.messages import SILENT, Profiler
from dynprof.runtime.plural import counted, listed_ranks

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dynprof.config import ProfilerConfig
    from dynprof.ranks.messages import GivenUp, Reply

LEADER = 0  # The rank that leads.
SPEEDUP_MARGIN = 0.5  # A step may take half the time of the fastest of late.
UNKNOWN_STEP_S = 0.001  # A step of a rank that has not ended one yet: it may be as short as this.
MAX_STEPS_APART = (
    3  # Ranks that step together are at most this many steps apart, at the same moment.
)
STEP_AGE_ERROR_S = 2.0  # How long a step has been running is known to a second or two.
MAX_NAMED = 16  # Remarks and the status name this many ranks; the record has all.
LONG_STEP_FACTOR = 3.0  # A step that takes this many times the usual is not like the others.
NO_COMMON_NUMBERS = (
    "its steps are counted since dynprof was attached, and no collectives tell their numbers on "
    "rank 0; attach to all ranks and save again after some steps, or choose one rank"
)


@dataclass(frozen=True)
class Terms:
    """What an operator asks of the ranks together."""

    ranks: RankSet  # that shall record
    patience_s: float = 30.0  # how long a rank that is not ready delays the start
    start: int | None = None  # the step that the config names; None where the ranks choose
    multiple: int = 1  # the step is a multiple of this
    downgrade: bool = False  # whether all record what they have in common where one can do less

    @classmethod
    def of(cls, config: ProfilerConfig) -> Terms:
        """Return what a config asks."""
        patience_s, downgrade = config.agreement.patience_s, config.agreement.unable == "downgrade"
        step, multiple = config.named_step, config.multiple
        return cls(config.asked_ranks, patience_s, step, multiple, downgrade)


@dataclass(frozen=True)
class Agreement:
    """What came of a proposal."""

    number: int  # of the request
    step: int | None = None  # at which all open; None where none does
    ranks: tuple[int, ...] = ()  # that take part
    left_out: Mapping[int, str] = field(default_factory=dict)  # why not, for the other requested
    reasons: tuple[str, ...] = ()  # why none opens; empty where they do
    took_s: float = 0.0  # from the proposal until all were told
    outcome: GivenUp = "refused"  # what became of the request where none opens
    remarks: tuple[str, ...] = ()  # which ranks may open at another iteration than the others


def chosen_ranks(asked: RankSet, replies: Mapping[int, Reply], world_size: int) -> RankSet:
    """Return the requested ranks by their numbers, silent ones among them.

    Raises:
        ValueError: The slowest is requested, and no rank knows how long its steps take.
    """
    found = {rank for rank in range(world_size) if rank in asked}
    if "one per host" in asked.chosen:
        hosts = {replies[rank].report.host: rank for rank in sorted(replies, reverse=True)}
        found |= set(hosts.values())
    by_time = sorted(
        (one.report.step_s, rank) for rank, one in replies.items() if one.report.step_s is not None
    )
    if not by_time and {"slowest", "median"} & set(asked.chosen):
        raise ValueError("no rank knows yet how long its steps take; save again in some seconds")
    if "slowest" in asked.chosen:
        found.add(by_time[-1][1])
    if "median" in asked.chosen:
        found.add(by_time[(len(by_time) - 1) // 2][1])
    return RankSet.parse(found)


def recording_problems(replies: Mapping[int, Reply]) -> dict[int, str]:
    """Say why each rank cannot record that cannot, or how what they would record with differs."""
    if problems := {rank: one.problem for rank, one in replies.items() if one.problem}:
        return problems
    would = {rank: one.would for rank, one in replies.items() if one.takes_part and one.would}
    if len(set(would.values())) < 2:
        return {}
    return {rank: f"it would record with {profiler}" for rank, profiler in would.items()}


def grouped_reasons(reasons: Mapping[int, str]) -> tuple[str, ...]:
    """Return each reason once, with the ranks that have it."""
    by_reason: dict[str, list[int]] = {}
    for rank, problem in sorted(reasons.items()):
        by_reason.setdefault(problem, []).append(rank)
    return tuple(f"{listed_ranks(ranks)}: {problem}" for problem, ranks in by_reason.items())


def common_profiler(usable: Collection[tuple[Profiler, ...]]) -> Profiler | None:
    """Return what all ranks can record with; None where there is nothing.

    Args:
        usable: For each rank, what it can record with, what it prefers first.
    """
    by_name = [{one.backend: one.activities for one in mine} for mine in usable]
    for first in next(iter(usable), ()):
        of_each = [mine.get(first.backend, ()) for mine in by_name]
        shared = tuple(a for a in first.activities if all(a in mine for mine in of_each))
        if shared:
            return Profiler(first.backend, shared)
    return None


def not_ready(
    replies: Mapping[int, Reply], silent: Collection[int], *, allows_long_step: bool
) -> dict[int, str]:
    """Say why each rank is not ready for a window that is not.

    A rank that has been in its step for long delays the start, unless all have: ranks that step
    together all stand still where one does.

    Args:
        replies: The ranks that answer.
        silent: Requested ranks that do not answer, and may yet.
        allows_long_step: Whether a rank in a long step is ready: it has to reach a given step.
    """
    part = {rank: one for rank, one in replies.items() if one.takes_part}
    found = dict.fromkeys(silent, SILENT)
    found |= {rank: one.busy for rank, one in part.items() if one.busy}
    times = [(one.report.still_s, one.report.step_s or 0.0) for one in part.values()]
    moved_s = min(
        (still_s + MAX_STEPS_APART * step_s for still_s, step_s in times if step_s), default=None
    )
    if allows_long_step or moved_s is None:
        return found
    for rank, one in part.items():
        still_s, step_s = one.report.still_s, one.report.step_s or 0.0
        if still_s > moved_s + STEP_AGE_ERROR_S and still_s > LONG_STEP_FACTOR * step_s:
            seconds = counted(round(still_s), "second")
            found.setdefault(rank, f"it has been in step {one.step:,} for {seconds}")
    return found


def start_step(
    replies: Iterable[Reply], lead_s: float, asked: int | None = None, multiple: int = 1
) -> int:
    """Return the first step that no rank begins within the lead.

    Args:
        replies: The ranks that take part.
        lead_s: From the first of these replies until all ranks know the step.
        asked: The step that the config names; None for the first possible one.
        multiple: The step is a multiple of this.

    Raises:
        ValueError: The named step has begun; the text says where.
    """
    found = 0
    for one in replies:
        if asked is not None and asked <= one.step:
            raise ValueError(f"rank {one.rank} is at step {one.step}")
        fast_s = SPEEDUP_MARGIN * (one.fast_s or UNKNOWN_STEP_S)
        found = max(found, one.step + 1 + math.ceil(lead_s / fast_s))
    return -(-found // multiple) * multiple if asked is None else asked


def counted_differently(replies: Sequence[Reply], took_s: float) -> dict[int, str]:
    """Say which ranks step together with the first and give their steps other numbers.

    Args:
        replies: The ranks that take part.
        took_s: Over how many seconds they replied.
    """
    if len(replies) > 1 and (alone := [one.rank for one in replies if one.is_alone]):
        return dict.fromkeys(alone, NO_COMMON_NUMBERS)
    apart = _apart([one for one in replies if one.marches], took_s)
    return {
        rank: f"it is at {where}, though they step together; call dp.set_state() with the same "
        "number on all ranks, or let one source count the steps of all"
        for rank, where in apart.items()
    }


def far_apart(replies: Sequence[Reply], took_s: float) -> tuple[str, ...]:
    """Say which ranks are at other steps than the first, so that their windows may differ."""
    apart = itertools.islice(_apart(replies, took_s).items(), MAX_NAMED)
    return tuple(
        f"rank {rank} is at {where}: each opens at that number of its own, which is another "
        "iteration if they train together"
        for rank, where in apart
    )


def _apart(replies: Sequence[Reply], took_s: float) -> dict[int, str]:
    """Say which ranks are farther from the first than it steps while they reply."""
    found = {}
    for one in replies[1:]:
        first = replies[0]
        fast_s = SPEEDUP_MARGIN * min(first.fast_s or UNKNOWN_STEP_S, one.fast_s or UNKNOWN_STEP_S)
        if abs(one.step - first.step) > MAX_STEPS_APART + took_s / fast_s:
            where = f"where rank {first.rank} is at {first.step:,}"
            found[one.rank] = f"step {one.step:,} {where}"
    return found

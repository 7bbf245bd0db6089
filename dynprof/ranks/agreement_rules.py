"""The rules of an agreement, as pure functions: which ranks record, with what, from which step."""

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

    from dynprof.ranks.messages import Reply

LEADER = 0  # The rank that leads.
SPEEDUP_MARGIN = 0.5  # A step may take half the time of the fastest recent step.
UNKNOWN_STEP_S = 0.001  # The least step time assumed for a rank that has ended no step yet.
MAX_STEPS_APART = 3  # Distance of ranks that step together, at the same moment.
STEP_AGE_ERROR_S = 2.0  # The age of the running step is sampled, and 1 to 2 s inexact.
MAX_NAMED = 16  # Ranks named in remarks and the status; the record names all.
LONG_STEP_FACTOR = 3.0  # A step that takes this many times its usual time is an outlier.
NO_COMMON_NUMBERS = (
    "its first steps were not counted, and no collectives map the others to rank 0's yet; "
    "attach to all ranks, save again after some steps, or choose one rank"
)


@dataclass(frozen=True)
class Agreement:
    """The result of a proposal."""

    number: int  # of the request
    step: int | None = None  # the start step of all ranks; None: no rank opens
    ranks: tuple[int, ...] = ()  # the ranks that take part
    left_out: Mapping[int, str] = field(default_factory=dict)  # the other requested ranks, and why
    reasons: tuple[str, ...] = ()  # why no rank opens; empty where some do
    took_s: float = 0.0  # from the proposal to the announcement
    remarks: tuple[str, ...] = ()  # which ranks may open at another iteration than the others


def chosen_ranks(asked: RankSet, replies: Mapping[int, Reply], world_size: int) -> RankSet:
    """Return the numbers of the requested ranks, including silent ones.

    Raises:
        ValueError: The slowest or median is requested, and no rank knows its step time.
    """
    found = {rank for rank in range(world_size) if rank in asked}
    if "one per host" in asked.chosen:
        hosts = {replies[rank].report.host: rank for rank in sorted(replies, reverse=True)}
        found |= set(hosts.values())
    by_time = sorted(
        (one.report.step_s, rank) for rank, one in replies.items() if one.report.step_s is not None
    )
    if not by_time and {"slowest", "median"} & set(asked.chosen):
        raise ValueError("no rank knows its step time yet; save again in some seconds")
    if "slowest" in asked.chosen:
        found.add(by_time[-1][1])
    if "median" in asked.chosen:
        found.add(by_time[(len(by_time) - 1) // 2][1])
    return RankSet.parse(found)


def recording_problems(replies: Mapping[int, Reply]) -> dict[int, str]:
    """Return why ranks cannot record; else, where their profilers differ, the profiler of each."""
    if problems := {rank: one.problem for rank, one in replies.items() if one.problem}:
        return problems
    profilers = {r: one.profiler for r, one in replies.items() if one.takes_part and one.profiler}
    if len(set(profilers.values())) < 2:
        return {}
    return {rank: f"it would record with {profiler}" for rank, profiler in profilers.items()}


def grouped_reasons(reasons: Mapping[int, str]) -> tuple[str, ...]:
    """Return each reason once, with its ranks."""
    by_reason: dict[str, list[int]] = {}
    for rank, problem in sorted(reasons.items()):
        by_reason.setdefault(problem, []).append(rank)
    return tuple(f"{listed_ranks(ranks)}: {problem}" for problem, ranks in by_reason.items())


def common_profiler(usable: Collection[tuple[Profiler, ...]]) -> Profiler | None:
    """Return a profiler that all ranks can record with; None where there is none.

    Args:
        usable: The profilers of each rank, the preferred one first.
    """
    by_name = [{one.backend: one.activities for one in own} for own in usable]
    for first in next(iter(usable), ()):
        of_each = [own.get(first.backend, ()) for own in by_name]
        shared = tuple(a for a in first.activities if all(a in own for own in of_each))
        if shared:
            return Profiler(first.backend, shared)
    return None


def not_ready(
    replies: Mapping[int, Reply], silent: Collection[int], *, allows_long_step: bool
) -> dict[int, str]:
    """Return the ranks that are not ready for a window, and why.

    A rank in a long step delays the start, unless all ranks are in one. Ranks that step together
    all stand still where one does.

    Args:
        replies: The ranks that answer.
        silent: Requested ranks that do not answer, but still may.
        allows_long_step: Whether a rank in a long step is ready, because the config names a step.
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
        lead_s: Time from the first of these replies until all ranks know the step.
        asked: The step that the config names; None for the first possible one.
        multiple: The step is a multiple of this.

    Raises:
        ValueError: The named step has begun; the message names a rank that has begun it.
    """
    found = 0
    for one in replies:
        if asked is not None and asked <= one.step:
            raise ValueError(f"rank {one.rank} is at step {one.step}")
        fast_s = SPEEDUP_MARGIN * (one.fast_s or UNKNOWN_STEP_S)
        found = max(found, one.step + 1 + math.ceil(lead_s / fast_s))
    return -(-found // multiple) * multiple if asked is None else asked


def without_common_numbers(replies: Sequence[Reply]) -> list[int]:
    """Return the ranks whose step numbers cannot be compared; a rank by itself needs none."""
    return [one.rank for one in replies if one.has_own_numbers] if len(replies) > 1 else []


def counted_differently(replies: Sequence[Reply], apart_s: float) -> dict[int, str]:
    """Return the ranks that step together with the first under other step numbers, and why.

    Args:
        replies: The ranks that take part.
        apart_s: The most seconds from the first reply to the last.
    """
    if found := without_common_numbers(replies):
        return dict.fromkeys(found, NO_COMMON_NUMBERS)
    apart = _apart([one for one in replies if one.steps_together], apart_s)
    return {
        rank: f"it is at {where}, though both step together; call "
        'dp.set_state({"cur_step": N}) with the same N on all ranks, or use one source of steps '
        "for all"
        for rank, where in apart.items()
    }


def far_apart(replies: Sequence[Reply], apart_s: float) -> tuple[str, ...]:
    """Return a remark on each rank whose step differs from the first rank's."""
    apart = itertools.islice(_apart(replies, apart_s).items(), MAX_NAMED)
    return tuple(
        f"rank {rank} is at {where}: each opens when its own count reaches the start step, "
        "which is another iteration if they train together"
        for rank, where in apart
    )


def _apart(replies: Sequence[Reply], apart_s: float) -> dict[int, str]:
    """Return the ranks that are farther from the first than it can step while they reply."""
    found = {}
    for one in replies[1:]:
        first = replies[0]
        fast_s = SPEEDUP_MARGIN * min(first.fast_s or UNKNOWN_STEP_S, one.fast_s or UNKNOWN_STEP_S)
        if abs(one.step - first.step) > MAX_STEPS_APART + apart_s / fast_s:
            where = f"rank {first.rank} at step {first.step:,}"
            found[one.rank] = f"step {one.step:,}, {where}"
    return found

"""Whom the leader waits for before a step is picked, and why; pure, no clock, no store.

A rank that does not answer, records a window, or stands still where others go on delays the start.
Who does so for longer than the patience is left out by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.coordination.step_numbers import FAR
from dynprof.coordination.terms import SILENT
from dynprof.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dynprof.coordination.messages import Reply

BLUR_S = 2.0
"""How long a step has been running is known to a second or so."""
STEPS = 3
"""A step that takes so many times as long as those before it is none like them."""


def held_up(
    replies: Mapping[int, Reply], silent: Collection[int], *, may_stand: bool
) -> dict[int, str]:
    """Say of each rank that is not ready for a window why it is not.

    Args:
        replies: What those say that answer.
        silent: Ranks that are asked for, do not answer, and may yet.
        may_stand: Whether one may stand still that has to come to the step all the same.
    """
    part = {rank: one for rank, one in replies.items() if one.takes_part}
    found = dict.fromkeys(silent, SILENT)
    found |= {rank: one.busy for rank, one in part.items() if one.busy}
    return found if may_stand else found | _standing(part)


def _standing(replies: Mapping[int, Reply]) -> dict[int, str]:
    """Say which ranks stand still, as in an evaluation, where others go on.

    Ranks that march together all stand where one does: there the others have hardly ended a step
    since. These need no wait, as all go on together.
    """
    moved_s = min(
        (one.still_s + FAR * one.step_s for one in replies.values() if one.step_s), default=None
    )
    if moved_s is None:
        return {}
    return {
        rank: f"it has been in step {one.step:,} for {counted(round(one.still_s), 'second')}"
        for rank, one in replies.items()
        if one.still_s > moved_s + BLUR_S and one.still_s > STEPS * (one.step_s or 0.0)
    }

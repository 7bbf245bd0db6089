"""What a rank is asked for, with less of it where the leader has found out what all ranks can."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.config import ProfilerConfig
    from dynprof.coordination.messages import Profiler, Proposal
    from dynprof.requests.request import Asked


def narrowed(asked: Asked, proposal: Proposal) -> Asked:
    """Return what is asked for with what the leader has found out for all ranks."""
    update: dict[str, object] = {}
    if proposal.ranks:
        update |= {"ranks": proposal.ranks, "is_rank": False}
    if proposal.profiler:
        update |= {"backend": proposal.profiler.backend}
        update |= {"activities": _watched(asked.config, proposal.profiler)}
    return replace(asked, config=asked.config.model_copy(update=update)) if update else asked


def _watched(config: ProfilerConfig, profiler: Profiler) -> list[str]:
    """Return what all ranks can watch of what is asked for; what they can, if that is nothing."""
    if config.watches_all:
        return list(profiler.activities)
    asked = {name.upper() for name in config.activities}
    return [name for name in profiler.activities if name in asked] or list(profiler.activities)

"""The step that all ranks can still reach: pure, no clock, no store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dynprof.coordination.messages import Reply

FASTER = 0.5
"""Steps may take so much of the usual time, and the step is reached by all the same."""
UNKNOWN_STEPS = 2
"""Ahead of a rank that does not know yet how long its steps take."""


def start_step(replies: Iterable[Reply], lead_s: float, asked: int | None = None) -> int:
    """Return the first step that no rank begins within the lead.

    Args:
        replies: Where each rank that takes part was a moment ago.
        lead_s: Until all of them know of it.
        asked: The step that the config asks for; None for the first that can be had.

    Raises:
        ValueError: The one that is asked for comes too soon; the text says for whom.
    """
    found = 0
    for reply in replies:
        earliest = reply.step + _steps_ahead(reply, lead_s)
        if asked is not None and asked < earliest:
            raise ValueError(f"rank {reply.rank} is at step {reply.step}")
        found = max(found, earliest)
    return found if asked is None else asked


def _steps_ahead(reply: Reply, lead_s: float) -> int:
    """Return how many steps from now one begins that comes after the lead.

    The step that is running may end at any moment; where steps are long, what it has run tells
    that there is time in it still.
    """
    if reply.step_s is None:
        return UNKNOWN_STEPS
    fast_s = max(reply.step_s * FASTER, 1e-6)
    at_any_moment = 1 + math.ceil(lead_s / fast_s)
    in_time = math.ceil((lead_s + reply.still_s) / fast_s)
    return max(1, min(at_any_moment, in_time))

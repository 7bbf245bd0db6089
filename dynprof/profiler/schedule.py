"""What to do at each step of a window, in the words of ``torch.profiler``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class ProfilerAction(Enum):
    """What a profiler does during one step."""

    NONE = 0
    """Nothing."""
    WARMUP = 1
    """It is on, but what it sees is not kept."""
    RECORD = 2
    """What it sees is kept."""
    RECORD_AND_SAVE = 3
    """The same, and at the end of this step the capture is closed."""


def schedule(
    *, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0
) -> Callable[[int], ProfilerAction]:
    """Return a function from step number (from 0) to action, as ``torch.profiler.schedule`` does.

    Args:
        wait: Steps to do nothing, at the start of each cycle.
        warmup: Steps to warm up.
        active: Steps to record.
        repeat: How many cycles; 0 for no end.
        skip_first: Steps to do nothing, once, before the first cycle.

    Raises:
        ValueError: A number is negative, or ``active`` is not positive.
    """
    numbers = {"wait": wait, "warmup": warmup, "repeat": repeat, "skip_first": skip_first}
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"{name} is {number}; it must be 0 or more")
    if active < 1:
        raise ValueError(f"active is {active}; it must be 1 or more")
    cycle = wait + warmup + active

    def action_at(step: int) -> ProfilerAction:
        since = step - skip_first
        if since < 0 or (repeat and since >= repeat * cycle):
            return ProfilerAction.NONE
        within = since % cycle
        if within < wait:
            return ProfilerAction.NONE
        if within < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if within < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action_at

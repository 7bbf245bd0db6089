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
    """The same, and at the end of this step the window is closed."""


RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
"""The actions that keep what is seen."""


def schedule(
    wait: int,
    active: int,
    warmup: int = 0,
    repeat: int = 0,
    skip_first: int = 0,
    skip_first_wait: int = 0,
) -> Callable[[int], ProfilerAction]:
    """Return a function from step number (from 0) to action, as ``torch.profiler.schedule`` does.

    Args:
        wait: Steps to do nothing, at the start of each cycle.
        active: Steps to record.
        warmup: Steps to warm up.
        repeat: How many cycles; 0 for no end.
        skip_first: Steps to do nothing, once, before the first cycle.
        skip_first_wait: Not 0: the first cycle leaves out its ``wait``.

    Raises:
        ValueError: A number is negative or no whole number, or ``active`` is not positive.
    """
    _insist(1, active=active)
    _insist(0, wait=wait, warmup=warmup, repeat=repeat, skip_first=skip_first)
    cycle = wait + warmup + active
    ahead = wait if skip_first_wait else 0

    def action_at(step: int) -> ProfilerAction:
        if step < 0:
            raise ValueError(f"step is {step}; it must be 0 or more")
        if step < skip_first:
            return ProfilerAction.NONE
        since = step - skip_first + ahead
        if repeat and since >= repeat * cycle:
            return ProfilerAction.NONE
        within = since % cycle
        if within < wait:
            return ProfilerAction.NONE
        if within < wait + warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if within < cycle - 1 else ProfilerAction.RECORD_AND_SAVE

    return action_at


def _insist(least: int, **numbers: object) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < least:
            raise ValueError(f"{name} is {number!r}; it must be a whole number of {least} or more")

"""What to do at each step of a window, in the words of ``torch.profiler``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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


@dataclass(eq=False)
class Schedule:
    """Says what to do at each step, as the function that ``torch.profiler.schedule`` returns does.

    Args:
        wait: Steps to do nothing, at the start of each cycle.
        active: Steps to record.
        warmup: Steps to warm up.
        repeat: The number of cycles; 0 for no end.
        skip_first: Steps to do nothing, once, before the first cycle.
        skip_first_wait: Not 0: the first cycle leaves out its ``wait``.

    Attributes:
        wait: As above, as is each argument.

    Raises:
        ValueError: A number is negative or no whole number, or ``active`` is not positive.
    """

    wait: int
    active: int
    warmup: int = 0
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __post_init__(self) -> None:
        _insist(1, active=self.active)
        _insist(
            0, wait=self.wait, warmup=self.warmup, repeat=self.repeat, skip_first=self.skip_first
        )

    def __call__(self, step: int) -> ProfilerAction:
        """Return the action of a step, counted from 0.

        Raises:
            ValueError: The step is negative.
        """
        if step < 0:
            raise ValueError(f"step is {step}; it must be 0 or more")
        if step < self.skip_first:
            return ProfilerAction.NONE
        cycle = self.wait + self.warmup + self.active
        since = step - self.skip_first + (self.wait if self.skip_first_wait else 0)
        if self.repeat and since >= self.repeat * cycle:
            return ProfilerAction.NONE
        within = since % cycle
        if within < self.wait:
            return ProfilerAction.NONE
        if within < self.wait + self.warmup:
            return ProfilerAction.WARMUP
        return ProfilerAction.RECORD if within < cycle - 1 else ProfilerAction.RECORD_AND_SAVE


def _insist(least: int, **numbers: object) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < least:
            raise ValueError(f"{name} is {number!r}; it must be a whole number of {least} or more")

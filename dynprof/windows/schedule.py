"""The action at each step of a window, with the names of ``torch.profiler``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dynprof.runtime.standard_streams import warn_script


class ProfilerAction(Enum):
    """What a profiler does during one step."""

    NONE = 0
    """Nothing."""
    WARMUP = 1
    """It is on, but its data are not kept."""
    RECORD = 2
    """Its data are kept."""
    RECORD_AND_SAVE = 3
    """As ``RECORD``, and the window closes at the end of this step."""


RECORDING = (ProfilerAction.RECORD, ProfilerAction.RECORD_AND_SAVE)
"""The actions that keep data."""


@dataclass(eq=False)
class Schedule:
    """Returns the action of each step, like the function from ``torch.profiler.schedule``.

    An unusable number is replaced by the least valid one, with a warning, as in torch_npu.

    Args:
        wait: Steps to do nothing, at the start of each cycle.
        active: Steps to record.
        warmup: Steps to warm up.
        repeat: The number of cycles; 0 for no end.
        skip_first: Steps to do nothing, once, before the first cycle.
        skip_first_wait: If not 0, the first cycle has no ``wait``.

    Attributes:
        wait: The number in use; the other arguments are attributes too.
    """

    wait: int
    active: int
    warmup: int = 0
    repeat: int = 0
    skip_first: int = 0
    skip_first_wait: int = 0

    def __post_init__(self) -> None:
        self.wait, self.active = _usable("wait", self.wait), _usable("active", self.active, least=1)
        self.warmup, self.repeat = _usable("warmup", self.warmup), _usable("repeat", self.repeat)
        self.skip_first = _usable("skip_first", self.skip_first)
        if not isinstance(self.skip_first_wait, int):
            self.skip_first_wait = _usable("skip_first_wait", self.skip_first_wait)

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


def _usable(name: str, number: object, least: int = 0) -> int:
    """Return the number, or the least valid one with a warning."""
    if isinstance(number, int) and number >= least:
        return number
    wanted = f"a whole number of {least} or more"
    warn_script(f"schedule(): {name}={number!r} is not {wanted}; {least} is used")
    return least

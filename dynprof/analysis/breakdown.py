"""Where a step's time goes, in words and in shares that add up to it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from dynprof.analysis.phases import REST, mean_phases
from dynprof.analysis.steps import HOST

if TYPE_CHECKING:
    from dynprof.analysis.capture import Capture
    from dynprof.analysis.steps import Step

COMPUTING, COMMUNICATION, IDLE = "computing", "communication", "idle"
_SHOWN = 0.005
"""Smaller shares are not named in words."""


class Breakdown:
    """The steps of a capture, and their mean; times in ns.

    Args:
        capture: The capture.

    Attributes:
        steps: The steps of one device, or of the host; of several devices, those of the first.
    """

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        first = capture.steps[0].device if capture.steps else HOST
        self.steps = [step for step in capture.steps if step.device == first]

    @property
    def on_host(self) -> bool:
        """Whether no device worked."""
        return not self.steps or self.steps[0].device == HOST

    @cached_property
    def length(self) -> float:
        """How long a step takes."""
        return self.mean_of("length")

    @cached_property
    def parts(self) -> dict[str, float]:
        """What a step's time is: computing, communication that nothing hides, neither."""
        found = [parts_of(step) for step in self.steps]
        names = (COMPUTING, COMMUNICATION, IDLE)
        return {name: sum(part[name] for part in found) / max(1, len(found)) for name in names}

    @cached_property
    def phases(self) -> dict[str, float]:
        """What the host does in a step."""
        return mean_phases(self._capture)

    def mean_of(self, name: str) -> float:
        """Return the mean of a step's field."""
        return float(sum(getattr(step, name) for step in self.steps) / max(1, len(self.steps)))

    def share(self, time: float) -> float:
        """Return what a time is of a step, from 0 to 1."""
        return min(1.0, time / self.length) if self.length > 0 else 0.0

    def __str__(self) -> str:
        if not self.length:
            return "The capture holds no event with a duration."
        if self.on_host and not self._capture.kinds:
            return f"{self._span()} No operator was recorded.{self._phases()}"
        return f"{self._span()} {self._work()}{self._phases()}"

    def _span(self) -> str:
        lengths = sorted(step.length for step in self.steps)
        if self.steps[0].number is None:
            return f"No step is marked; the capture spans {ms(lengths[0])}."
        if len(lengths) == 1:
            return f"The step takes {ms(lengths[0])}."
        around = f"from {ms(lengths[0])} to {ms(lengths[-1])}"
        return f"A step takes {ms(self.length)} ({len(lengths)} steps, {around})."

    def _work(self) -> str:
        who = "Operators of the host run" if self.on_host else "The device computes"
        said = f"{who} for {self.share(self.parts[COMPUTING]):.0%} of it"
        if self.share(self.parts[COMMUNICATION]) >= _SHOWN:
            said += (
                f", {self.share(self.parts[COMMUNICATION]):.0%} is communication that nothing hides"
            )
        idle = self.share(self.parts[IDLE])
        if self.on_host:
            return f"{said}, and {idle:.0%} is Python or waiting."
        return f"{said}, and the device is idle for {idle:.0%}."

    def _phases(self) -> str:
        named = [(n, self.share(t)) for n, t in self.phases.items() if n != REST]
        named = sorted(((n, s) for n, s in named if s >= _SHOWN), key=lambda pair: -pair[1])
        if not named:
            return ""
        return f" On the host: {', '.join(f'{name} {share:.0%}' for name, share in named)}."


def ms(nanoseconds: float) -> str:
    """Return a time in ms, with three digits that mean something."""
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def parts_of(step: Step) -> dict[str, int]:
    """Return what the time of a step is; on a device that runs behind, no more than the step."""
    computing = min(step.computing, step.length)
    alone = min(step.communication - step.overlapped, step.length - computing)
    idle = step.length - computing - alone
    return {COMPUTING: computing, COMMUNICATION: alone, IDLE: idle}

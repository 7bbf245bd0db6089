"""What each capture cost the job: step times before, during and after it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.windows.expected_cost import ExpectedCost
from dynprof.windows.step_times import StepTimes

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.clock import Clock
    from dynprof.requests.inbox import Inbox

AFTER_S = 10.0
"""Over how many seconds the step time after a capture is measured."""


@dataclass(frozen=True)
class Span:
    """From the opening of a window to its closing, both at step boundaries.

    Attributes:
        opened_s: Monotonic time before opening.
        opened_step: The step that began then.
        closed_s: Monotonic time after closing.
        closed_step: The step that began then.
    """

    opened_s: float
    opened_step: int
    closed_s: float
    closed_step: int


@dataclass
class Unsettled:
    """A saved capture whose cost still lacks what comes after.

    Attributes:
        path: Where its manifest lies.
        manifest: What the manifest says.
        span: When the window was open.
        since_s: Monotonic time of the first step boundary after saving; of the end of saving
            while none has come.
        since_step: The step that began then.
    """

    path: Path
    manifest: Manifest
    span: Span
    since_s: float
    since_step: int

    def settle(self, now_s: float, step: int, *, final: bool) -> bool:
        """Complete the manifest once enough time has passed; False while it is too early.

        Args:
            now_s: Monotonic time.
            step: The step that is running.
            final: Take what there is: the process ends, or another window opens.
        """
        if now_s - self.since_s < AFTER_S and not final:
            return False
        after_ms = _mean_ms(now_s - self.since_s, step - self.since_step)
        span, before_ms = self.span, self.manifest.cost.step_before_ms
        usual_ms = after_ms if before_ms is None else before_ms
        extra_ms = None
        if usual_ms is not None:
            took_ms = (self.since_s - span.opened_s) * 1e3
            lost_ms = took_ms - (self.since_step - span.opened_step) * usual_ms
            extra_ms = lost_ms if lost_ms >= 0 else None
        saving_ms = _mean_ms(self.since_s - span.closed_s, self.since_step - span.closed_step)
        # Whoever took the capture away or deleted it has the cost as it stood then.
        with contextlib.suppress(FileNotFoundError):
            if found := self.manifest.found_at(self.path):
                found.settled(
                    step_saving_ms=saving_ms, step_after_ms=after_ms, extra_ms=extra_ms
                ).save(self.path)
        return True


def _mean_ms(seconds: float, steps: int) -> float | None:
    return seconds * 1e3 / steps if steps > 0 else None


class CostAccount:
    """Keeps the step times of the job, apart for each stretch between two windows.

    Args:
        clock: Tells the time.
        inbox: Counts the steps.

    Attributes:
        expected: What windows are expected to cost.
    """

    def __init__(self, clock: Clock, inbox: Inbox) -> None:
        self._clock, self._inbox = clock, inbox
        self._step_times = StepTimes()
        self._unsettled: Unsettled | None = None
        self._stretch_end: tuple[float, int] | None = None
        self.expected = ExpectedCost()

    def sample(self) -> None:
        """Note where the step counter stands."""
        self._step_times.sample(*self._now())

    def step_ms(self) -> float | None:
        """Return the mean step time of late."""
        return self._step_times.mean_ms(*self._now())

    def recent_steps(self) -> tuple[tuple[float, int], ...]:
        """Return the newest samples of the step counter, each with its seconds since the epoch."""
        offset_s = self._clock.wall_s() - self._clock.now_s()
        recent = self._step_times.recent()
        return tuple((round(now_s + offset_s, 3), step) for now_s, step in recent)

    def still_s(self) -> float:
        """Return for how long the step counter has stood still."""
        return self._step_times.still_s(*self._now())

    def longest_s(self) -> float | None:
        """Return how long a step took at most, in whole seconds; None before the first ended."""
        longest_s = self._step_times.longest_s(*self._now())
        return None if longest_s is None else float(round(longest_s))

    def window_opens(self) -> float | None:
        """End a stretch; return its mean step time. Cheap: the training thread calls it."""
        before_ms = self._step_times.mean_ms(*self._now())
        self._stretch_end = self._now()
        self._step_times.forget()
        return before_ms

    def window_saved(self, path: Path | None, manifest: Manifest, span: Span) -> None:
        """Begin a stretch, whose step time the manifest still lacks; no path: it is not there."""
        self._stretch_end = None
        self._step_times.forget()
        self.expected.learn(manifest)
        self._unsettled = Unsettled(path, manifest, span, *self._now()) if path else None

    def step_ends(self) -> None:
        """Note the first step boundary after saving: more exact than the middle of a step."""
        if unsettled := self._unsettled:
            unsettled.since_s, unsettled.since_step = self._now()

    def counter_set(self, step: int) -> None:
        """Forget what was: the steps were given other numbers, the one that is running this."""
        self._step_times.renumber(step)
        self._unsettled = None

    def settle(self, *, final: bool) -> None:
        """Complete the manifest that waits, once its stretch is long enough or over."""
        unsettled, self._unsettled = self._unsettled, None  # a failing one is not tried again
        now_s, step = self._stretch_end or self._now()
        final = final or self._stretch_end is not None
        if unsettled and not unsettled.settle(now_s, step, final=final):
            self._unsettled = unsettled

    def _now(self) -> tuple[float, int]:
        """Return the monotonic time, and the step that is running."""
        return self._clock.now_s(), self._inbox.step

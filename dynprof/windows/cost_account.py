"""Step times before and after each window, and the bills that wait for the latter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.windows.open_window import Unsettled
from dynprof.windows.step_times import Pace

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.windows.open_window import Span
    from dynprof.captures.manifest import Manifest


class Ledger:
    """Keeps the pace of the job, apart for each stretch between two windows."""

    def __init__(self) -> None:
        self._pace = Pace()
        self._unsettled: Unsettled | None = None
        self._stretch_end: tuple[float, int] | None = None

    def sample(self, now_s: float, step: int) -> None:
        """Note where the step counter stands."""
        self._pace.sample(now_s, step)

    def step_ms(self, now_s: float, step: int) -> float | None:
        """Return the mean step time of late."""
        return self._pace.mean_ms(now_s, step)

    def still_s(self, now_s: float, step: int) -> float:
        """Return for how long the step counter has stood still."""
        return self._pace.still_s(now_s, step)

    def longest_s(self, now_s: float, step: int) -> float | None:
        """Return how long a step took at most, in whole seconds; None before the first ended."""
        longest_s = self._pace.longest_s(now_s, step)
        return None if longest_s is None else float(round(longest_s))

    def window_opens(self, now_s: float, step: int) -> float | None:
        """End a stretch; return its mean step time. Cheap: the training thread calls it."""
        before_ms = self._pace.mean_ms(now_s, step)
        self._stretch_end = (now_s, step)
        self._pace.forget()
        return before_ms

    def window_saved(
        self, path: Path | None, manifest: Manifest, span: Span, now_s: float, step: int
    ) -> None:
        """Begin a stretch, whose step time the manifest still lacks; no path: it is not there."""
        self._stretch_end = None
        self._pace.forget()
        self._unsettled = Unsettled(path, manifest, span, now_s, step) if path else None

    def step_ends(self, now_s: float, step: int) -> None:
        """Note the first step boundary after saving: more exact than the middle of a step."""
        if unsettled := self._unsettled:
            unsettled.since_s, unsettled.since_step = now_s, step

    def counter_set(self, step: int) -> None:
        """Forget what was: the steps were given other numbers, the one that is running this."""
        self._pace.renumber(step)
        self._unsettled = None

    def settle(self, now_s: float, step: int, *, final: bool) -> None:
        """Complete the manifest that waits, once its stretch is long enough or over."""
        unsettled, self._unsettled = self._unsettled, None  # a failing one is not tried again
        if self._stretch_end:
            (now_s, step), final = self._stretch_end, True
        if unsettled and not unsettled.settle(now_s, step, final=final):
            self._unsettled = unsettled

"""Step times without a clock in the idle ``step()``: a thread samples the counter instead."""

from __future__ import annotations

from collections import deque

SAMPLES = 30
"""How many samples are kept; at one a second, the mean step time is that of half a minute."""
RECENT = 16
"""Samples for the status; one a second, so that they span three heartbeats."""


class StepTimes:
    """Mean step times from samples of the step counter."""

    def __init__(self) -> None:
        self._longest_s: float | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._before: list[tuple[float, int]] = []  # the first step, until there is another sample
        self._last_step = -1
        self._moved_s = 0.0

    def sample(self, now_s: float, step: int) -> None:
        """Note that the counter stood at ``step`` at ``now_s``."""
        self._before = []
        if step != self._last_step:
            if self._longest_s is None:  # what came before the first step is none of a step
                self._before = list(self._samples)[-1:]
                self._samples.clear()
            self._longest_s = self.longest_s(now_s, step)
            self._last_step, self._moved_s = step, now_s
        if self._samples and step < self._samples[-1][1]:
            self._samples.clear()  # the counter was set back
        self._samples.append((now_s, step))
        self._recent.append((now_s, step))

    def renumber(self, step: int) -> None:
        """Begin anew as the counter is set to ``step``, which is no move of the job's."""
        self.forget()
        self._recent.clear()
        if self._last_step >= 0:
            self._last_step = step

    def forget(self) -> None:
        """Start anew: what comes is not to be averaged with what was."""
        self._before = []
        self._samples.clear()

    def recent(self) -> list[tuple[float, int]]:
        """Return the newest samples, the oldest first, windows or not."""
        return list(self._recent.copy())

    def still_s(self, now_s: float, step: int) -> float:
        """Return for how long the counter has stood still, as far as samples tell."""
        return now_s - self._moved_s if step == self._last_step else 0.0

    def longest_s(self, now_s: float, step: int) -> float | None:
        """Return for how long it stood still at most before it moved on; None if it never did."""
        if self._last_step in (step, -1):
            return self._longest_s
        return max(self._longest_s or 0.0, now_s - self._moved_s)

    def mean_ms(self, now_s: float, step: int, since_s: float = 0.0) -> float | None:
        """Return the mean step time since ``since_s``, or over the samples kept, up to now."""
        for sampled_s, sampled_step in [*self._samples.copy(), *self._before]:
            if sampled_s >= since_s and step > sampled_step:
                return (now_s - sampled_s) * 1e3 / (step - sampled_step)
        return None

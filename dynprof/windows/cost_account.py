"""What captures cost the job, before they are taken and after: step times, events, time to save."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.runtime.plural import about, counted

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.request import Request
    from dynprof.runtime.clock import Clock

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
class PendingCost:
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

    def complete(self, now_s: float, step: int, *, final: bool) -> bool:
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
        self._pending: PendingCost | None = None
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
        self._pending = PendingCost(path, manifest, span, *self._now()) if path else None

    def step_ends(self) -> None:
        """Note the first step boundary after saving: more exact than the middle of a step."""
        if pending := self._pending:
            pending.since_s, pending.since_step = self._now()

    def renumber(self, step: int) -> None:
        """Forget what was: the steps were given other numbers, the one that is running this."""
        self._step_times.renumber(step)
        self._pending = None

    def complete_pending(self, *, final: bool) -> None:
        """Complete the manifest that waits, once its stretch is long enough or over."""
        pending, self._pending = self._pending, None  # a failing one is not tried again
        now_s, step = self._stretch_end or self._now()
        final = final or self._stretch_end is not None
        if pending and not pending.complete(now_s, step, final=final):
            self._pending = pending

    def _now(self) -> tuple[float, int]:
        """Return the monotonic time, and the step that is running."""
        return self._clock.now_s(), self._inbox.step


EVENT_US, EVENT_BYTES = 10.0, 25.0
"""What an event takes to save, in microseconds and in bytes of the compressed trace, where no
window of the kind has been saved in this process: docs/benchmarks.md."""
MIN_REPORTED_SAVE_S = 1.0
"""What takes less time to save is not worth a line."""
_KIND = ("with_stack", "record_shapes", "profile_memory")


class ExpectedCost:
    """Goes by the last window of a kind that this process has saved."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], Manifest] = {}

    def learn(self, manifest: Manifest) -> None:
        """Note what a saved window took."""
        if manifest.trace and manifest.cost.events and manifest.cost.save_ms:
            config = manifest.request.config
            kind = (manifest.backend, *(bool(config.get(name)) for name in _KIND))
            self._last[kind] = manifest

    def at_opening(self, request: Request) -> str:
        """Return what a window will cost by the steps of the last of its kind; empty for none."""
        events, last = self.events_of_a_step(request), self._last_of(request)
        step_ms = last.cost.step_during_ms if last else None
        return self.by_steps(request, events, (step_ms or 0.0) / 1e3) if events else ""

    def events_of_a_step(self, request: Request) -> int:
        """Return how many events a step of the last window of the kind had; 0 for unknown."""
        last = self._last_of(request)
        if last is None or not (last.cost.events and last.steps.recorded):
            return 0
        return last.cost.events // last.steps.recorded

    def by_steps(self, request: Request, events: int, step_s: float) -> str:
        """Return what a window will cost; empty where that is little.

        Args:
            request: What it was opened for.
            events: How many events a step has.
            step_s: How long a step takes, in seconds.
        """
        each, asked, most = max(1, events), request.config.active, request.config.limits
        steps = {"": asked}
        if most.max_events:
            steps[f"limits.max_events ({most.max_events:,})"] = most.max_events // each
        if most.max_seconds is not None and step_s:
            steps[f"limits.max_seconds ({most.max_seconds:g})"] = int(most.max_seconds / step_s) + 1
        limit = min(steps, key=lambda name: steps[name])
        kept = max(1, steps[limit])
        last, us, size, pace = self._last_of(request), EVENT_US, EVENT_BYTES, "on a free core"
        if last and last.cost.events and last.cost.save_ms:
            us, pace = last.cost.save_ms * 1e3 / last.cost.events, "as fast as the last window"
            size = last.trace_bytes / last.cost.events
        save_s = each * kept * us / 1e6
        if save_s < MIN_REPORTED_SAVE_S:
            return ""
        what = "event" if each == 1 else "events"
        text = f"a step records about {about(each)} {what}; {counted(kept, 'step')} take about "
        text += f"{save_s:,.1f} s to save {pace}, and "
        text += f"{each * kept * size / 1e6:,.1f} MB"
        return f"{text}; {limit} ends the window after them" if limit else text

    def _last_of(self, request: Request) -> Manifest | None:
        kind = (request.plan.backend, *(bool(getattr(request.config, name)) for name in _KIND))
        return self._last.get(kind)


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

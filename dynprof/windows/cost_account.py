"""The cost of captures to the job, before and after: step times, events, time to save."""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.journal.status import HEARTBEAT_S
from dynprof.runtime.plural import about, counted

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.request import Request
    from dynprof.runtime.clock import Clock

AFTER_S = 10.0
"""The time over which the step time after a capture is measured."""
EVENT_US, EVENT_BYTES = 10.0, 25.0
"""Microseconds to save an event, and its bytes in the compressed trace, until this process has
saved a window of the same kind: docs/benchmarks.md."""
MIN_REPORTED_SAVE_S = 1.0
"""The log mentions an expected save time above this."""
_KIND = ("with_stack", "record_shapes", "profile_memory")
"""The settings that, with the backend, make windows comparable."""
SAMPLES = 30
"""Samples kept; at one a second, the mean step time covers half a minute."""
RECENT = 16
"""Samples for the status; at one a second, they span three heartbeats."""


@dataclass(frozen=True)
class Span:
    """The time from the opening of a window to its closing, both at step boundaries.

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
    """A saved capture whose cost lacks the step time after it.

    Attributes:
        path: The path of its manifest.
        manifest: The manifest.
        span: When the window was open.
        since_s: Monotonic time of the first step boundary after saving; until then, of the end of
            saving.
        since_step: The step that began then.
    """

    path: Path
    manifest: Manifest
    span: Span
    since_s: float
    since_step: int

    def complete(self, now_s: float, step: int, *, final: bool) -> bool:
        """Complete the manifest once enough time has passed; return False while it is too early.

        Args:
            now_s: Monotonic time.
            step: The running step.
            final: Whether to complete it now: the process ends, or another window opens.
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
        # If the capture was moved or deleted, its manifest keeps the cost it had then.
        with contextlib.suppress(FileNotFoundError):
            if found := self.manifest.read_back(self.path):
                found.with_costs(
                    step_saving_ms=saving_ms, step_after_ms=after_ms, extra_ms=extra_ms
                ).save(self.path)
        return True


def _mean_ms(seconds: float, steps: int) -> float | None:
    return seconds * 1e3 / steps if steps > 0 else None


class CostAccount:
    """Keeps the step times of the job, for each stretch between two windows.

    Args:
        clock: The clock.
        inbox: Counts the steps.

    Attributes:
        expected: The expected cost of windows.
        hour_ms: Median step time of the last hour; None while unknown.
    """

    def __init__(self, clock: Clock, inbox: Inbox) -> None:
        self._clock, self._inbox = clock, inbox
        self._step_times = StepTimes()
        self._pending: PendingCost | None = None
        self._stretch_end: tuple[float, int] | None = None
        self.expected = ExpectedCost()
        self.hour_ms: float | None = None

    def sample(self) -> None:
        """Sample the step counter."""
        self._step_times.sample(*self._now())

    def step_ms(self) -> float | None:
        """Return the recent mean step time."""
        return self._step_times.mean_ms(*self._now())

    def recent_steps(self) -> tuple[tuple[float, int], ...]:
        """Return the newest samples of the step counter, each with its seconds since the epoch."""
        offset_s = self._clock.wall_s() - self._clock.now_s()
        recent = self._step_times.recent()
        return tuple((round(now_s + offset_s, 3), step) for now_s, step in recent)

    @property
    def stood_s(self) -> float:
        """How long the step counter stood still before it changed last, as far as is known."""
        return self._step_times.stood_s

    def still_s(self) -> float:
        """Return how long the step counter has not changed."""
        return self._step_times.still_s(*self._now())

    def longest_s(self) -> float | None:
        """Return the longest step time in whole seconds; None before the first step ended."""
        longest_s = self._step_times.longest_s(*self._now())
        return None if longest_s is None else float(round(longest_s))

    def window_opens(self) -> float | None:
        """End a stretch; return its mean step time. Cheap: the training thread calls it."""
        before_ms = self._step_times.mean_ms(*self._now())
        self._stretch_end = self._now()
        self._step_times.reset()
        return before_ms

    def window_saved(self, path: Path | None, manifest: Manifest, span: Span) -> None:
        """Begin the stretch after a window; without a path there is no manifest to complete."""
        self._stretch_end = None
        self._step_times.reset()
        self.expected.learn(manifest)
        self._pending = PendingCost(path, manifest, span, *self._now()) if path else None

    def step_ends(self) -> None:
        """Note the first step boundary after saving, which is more exact than the end of saving."""
        if pending := self._pending:
            pending.since_s, pending.since_step = self._now()

    def renumber(self, step: int) -> None:
        """Restart with the running step as ``step``: the steps were renumbered."""
        self._step_times.renumber(step)
        self._pending = None

    def complete_pending(self, *, final: bool) -> None:
        """Complete the pending manifest once its stretch is long enough or over."""
        pending, self._pending = self._pending, None  # a failed one is not tried again
        now_s, step = self._stretch_end or self._now()
        final = final or self._stretch_end is not None
        if pending and not pending.complete(now_s, step, final=final):
            self._pending = pending

    def _now(self) -> tuple[float, int]:
        """Return the monotonic time and the running step."""
        return self._clock.now_s(), self._inbox.step


class ExpectedCost:
    """Estimates the cost of a window from the last saved window of its kind in this process."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], Manifest] = {}

    def learn(self, manifest: Manifest) -> None:
        """Note the cost of a saved window."""
        if manifest.trace and manifest.cost.events and manifest.cost.save_ms:
            config = manifest.request.config
            kind = (manifest.backend, *(bool(config.get(name)) for name in _KIND))
            self._last[kind] = manifest

    def at_opening(self, request: Request) -> str:
        """Return the expected cost, by the last window of the kind; empty if there was none."""
        events, last = self.events_of_a_step(request), self._last_of(request)
        step_ms = last.cost.step_during_ms if last else None
        return self.by_steps(request, events, (step_ms or 0.0) / 1e3) if events else ""

    def events_of_a_step(self, request: Request) -> int:
        """Return the events per step of the last window of the kind; 0 if unknown."""
        last = self._last_of(request)
        if last is None or not (last.cost.events and last.steps.recorded):
            return 0
        return last.cost.events // last.steps.recorded

    def by_steps(self, request: Request, events: int, step_s: float) -> str:
        """Return the expected cost of a window; empty if it is small.

        Args:
            request: The request of the window.
            events: Events per step.
            step_s: Step time in seconds.
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


class StepTimes:
    """Mean step times from samples of the step counter.

    Attributes:
        stood_s: How long the counter stood still before it changed last.
    """

    def __init__(self) -> None:
        self._longest_s: float | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)
        self._recent: deque[tuple[float, int]] = deque(maxlen=RECENT)
        self._before: list[tuple[float, int]] = []  # the first step, until the next sample
        self._last_step = -1
        self._moved_s = self.stood_s = 0.0

    def sample(self, now_s: float, step: int) -> None:
        """Note that the counter was at ``step`` at ``now_s``."""
        self._before = []
        if step != self._last_step:
            if self._longest_s is None:  # the time before the first step is no step time
                self._before = list(self._samples)[-1:]
                self._samples.clear()
            self._longest_s = self.longest_s(now_s, step)
            self.stood_s = self._stood_s(now_s, step)
            self._last_step, self._moved_s = step, now_s
        if self._samples and step < self._samples[-1][1]:
            self._samples.clear()  # the counter was set back
        self._samples.append((now_s, step))
        self._recent.append((now_s, step))

    def renumber(self, step: int) -> None:
        """Restart because the counter was set to ``step``, which is no progress of the job."""
        self.reset()
        self._recent.clear()
        if self._last_step >= 0:
            self._last_step = step

    def reset(self) -> None:
        """Drop the samples, so that means do not mix the stretches."""
        self._before = []
        self._samples.clear()

    def recent(self) -> list[tuple[float, int]]:
        """Return the newest samples, the oldest first, including those during windows."""
        return list(self._recent.copy())

    def still_s(self, now_s: float, step: int) -> float:
        """Return how long the counter has not changed, according to the samples."""
        return now_s - self._moved_s if step == self._last_step else 0.0

    def longest_s(self, now_s: float, step: int) -> float | None:
        """Return the longest time without a change before one; None if there was no change."""
        if self._last_step in (step, -1):
            return self._longest_s
        return max(self._longest_s or 0.0, self._stood_s(now_s, step))

    def _stood_s(self, now_s: float, step: int) -> float:
        """Return how long the counter stood still at most, before it changed to ``step``.

        In a gap between samples that is as long as a silence, the other steps have taken their
        usual time: the thread that samples may have waited for a disk while the job trained.
        """
        stood_s = now_s - self._moved_s
        if not self._recent or now_s - self._recent[-1][0] < 3 * HEARTBEAT_S:
            return stood_s
        first_s, first = self._recent[0]
        steps = self._last_step - first
        usual_s = (self._moved_s - first_s) / steps if steps > 0 else 0.0
        return max(0.0, stood_s - usual_s * max(0, step - self._last_step - 1))

    def mean_ms(self, now_s: float, step: int, since_s: float = 0.0) -> float | None:
        """Return the mean step time up to now, since ``since_s`` or over the samples kept."""
        for sampled_s, sampled_step in [*self._samples.copy(), *self._before]:
            if sampled_s >= since_s and step > sampled_step:
                return (now_s - sampled_s) * 1e3 / (step - sampled_step)
        return None

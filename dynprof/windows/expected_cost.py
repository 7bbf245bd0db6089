"""What it is expected to cost to save a window, told while it is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.plural import about, counted

if TYPE_CHECKING:
    from dynprof.captures.manifest import Manifest
    from dynprof.requests.request import Request

EVENT_US, EVENT_BYTES = 10.0, 25.0
"""What an event takes to save, in microseconds and in bytes of the compressed trace, where no
window of the kind has been saved in this process: docs/benchmarks.md."""
TOLD_S = 1.0
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
        if save_s < TOLD_S:
            return ""
        text = f"a step records about {about(each)} events; {counted(kept, 'step')} take about "
        text += f"{save_s:,.1f} s to save {pace}, and "
        text += f"{each * kept * size / 1e6:,.1f} MB"
        return f"{text}; {limit} ends the window after them" if limit else text

    def _last_of(self, request: Request) -> Manifest | None:
        kind = (request.plan.backend, *(bool(getattr(request.config, name)) for name in _KIND))
        return self._last.get(kind)

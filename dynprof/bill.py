"""What a window was and what it cost, gathered into its manifest."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.capture import Cost, Manifest, Steps
from dynprof.capture import Request as RequestRecord
from dynprof.clock import iso
from dynprof.version import __version__

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from dynprof.backends import Backend
    from dynprof.process import Process
    from dynprof.profiler.window import Window
    from dynprof.request import Request

AFTER_S = 10.0
"""Over how many seconds the step time after a capture is measured."""


@dataclass
class OpenWindow:
    """An open window with what was noted at its opening.

    Attributes:
        window: The engine.
        request: Who asked for it.
        backend: What records.
        thread: The thread that opened it; only that one may move it.
        opened_s: Monotonic time of opening.
        opened_wall_s: Time of opening, seconds since the epoch.
        memory_mb: Resident memory of the process before opening.
        step_before_ms: Mean step time before.
        open_ms: Time that opening took.
        closing: How the recording is closed.
        remarks: What was odd about its steps.
    """

    window: Window
    request: Request
    backend: Backend
    thread: threading.Thread
    opened_s: float
    opened_wall_s: float
    memory_mb: float
    step_before_ms: float | None
    open_ms: float = 0.0
    closing: str = ""
    remarks: list[str] = field(default_factory=list)


def draw_up(
    current: OpenWindow, process: Process, *, reason: str, close_ms: float, closed_wall_s: float
) -> Manifest:
    """Return the manifest of a window that was just closed, as far as it is known then.

    Args:
        current: The window.
        process: This process.
        reason: Why it is not complete; empty where it is.
        close_ms: Time that closing took.
        closed_wall_s: Time of closing, seconds since the epoch.
    """
    window, request = current.window, current.request
    seconds = window.durations_s
    during_ms = round(sum(seconds) / len(seconds) * 1e3, 4) if seconds else None
    return Manifest(
        dynprof=__version__,
        backend=current.backend.name,
        versions=dict(current.backend.versions()),
        host=process.layout.host,
        pid=process.layout.pid,
        rank=process.rank.number,
        world_size=process.rank.world_size,
        request=RequestRecord(
            number=request.number,
            edited_at=iso(request.edited_at_s),
            sha256=request.sha256,
            config=request.config.to_json(),
        ),
        steps=Steps(
            first=window.first, last=window.last, recorded=window.recorded, warmup=window.warmup
        ),
        activities=request.plan.activities,
        opened_at=iso(current.opened_wall_s),
        closed_at=iso(closed_wall_s),
        complete=not reason,
        reason=reason,
        closing=current.closing,
        remarks=(*map(str, request.remarks), *current.remarks),
        cost=Cost(
            open_ms=round(current.open_ms, 3),
            close_ms=round(close_ms, 3),
            step_before_ms=current.step_before_ms and round(current.step_before_ms, 4),
            step_during_ms=during_ms,
        ),
    )


@dataclass(frozen=True)
class Unsettled:
    """A saved capture whose step time afterwards is still being measured.

    Attributes:
        path: Where its manifest lies.
        manifest: What the manifest says.
        since_s: Monotonic time at which saving ended.
        since_step: Step at which saving ended.
    """

    path: Path
    manifest: Manifest
    since_s: float
    since_step: int

    def settle(self, now_s: float, step: int, *, final: bool) -> bool:
        """Add the step time after saving once it is known; False while it is too early.

        Args:
            now_s: Monotonic time.
            step: The step that is running.
            final: Take what there is: the process ends.
        """
        seconds, steps = now_s - self.since_s, step - self.since_step
        if seconds < AFTER_S and not final:
            return False
        if steps > 0:
            self.manifest.with_step_after(seconds * 1e3 / steps).save(self.path)
        return steps > 0 or final

"""What a window was and what it cost, gathered into its manifest."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.captures.manifest import Cost, Manifest, Steps
from dynprof.captures.manifest import Request as RequestRecord
from dynprof.process.clock import iso
from dynprof.plural import counted
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.backends import Backend, Recording
    from dynprof.windows.this_process import Process
    from dynprof.windows.window import Window
    from dynprof.requests.request import Request

AFTER_S = 10.0
"""Over how many seconds the step time after a capture is measured."""
_ALL_THREADS = "step() is called by several threads: each call ends a step, all are recorded"
_ONE_THREAD = "step() is called by several threads: only the one that opened the window is recorded"


@dataclass
class OpenWindow:
    """An open window with what was noted at its opening.

    Attributes:
        window: The engine.
        request: Who asked for it.
        backend: What records.
        thread: The thread that opened it; where the recording is bound to it, only that one may
            move it.
        opened_s: Monotonic time of opening.
        opened_step: The step that began then.
        step: The step that is running.
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
    opened_step: int
    opened_wall_s: float
    memory_mb: float
    step_before_ms: float | None
    open_ms: float = 0.0
    closing: str = ""
    step: int = 0
    remarks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step = self.opened_step

    @property
    def movable(self) -> bool:
        """Whether the calling thread may move and close it."""
        return self.may_end(self.window)

    def may_end(self, recording: Recording | Window) -> bool:
        """Return whether the calling thread may end a recording of it, which it has or let go."""
        return not recording.bound_to_thread or self.thread is threading.current_thread()

    def remark(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def note_thread(self) -> None:
        """Remark that the calling thread ends a step of it, where another one opened it."""
        if self.thread is not threading.current_thread():
            self.remark(_ONE_THREAD if self.window.bound_to_thread else _ALL_THREADS)

    def note_cut(self) -> None:
        """Remark that the window ends in the middle of a step."""
        if self.window.state == "recording":
            self.remark(f"the trace ends inside step {self.step}, which is not counted")

    def how_closed(self, close_ms: float, reason: str) -> str:
        """Say how it was closed, for the log.

        Args:
            close_ms: Time that closing took.
            reason: Why it is not complete; empty where it is.
        """
        done = self.window.recorded
        text = f"closed at step {self.step} in {close_ms:.2f} ms ({self.closing}), "
        text += f"{done:,} of {counted(self.window.active or 0, 'step')}"
        text += f" ({self.window.kept})" if reason and done else ""
        return text + (f"; early: {reason}" if reason else "")


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
        remarks=(*map(str, request.remarks), *current.remarks, *_gaps(window)),
        cost=Cost(
            open_ms=round(current.open_ms, 3),
            close_ms=round(close_ms, 3),
            step_before_ms=current.step_before_ms and round(current.step_before_ms, 4),
            step_during_ms=during_ms,
        ),
    )


def _gaps(window: Window) -> Iterator[str]:
    """Yield a remark on recorded steps whose numbers do not follow each other."""
    numbers = window.numbers[: window.recorded]
    if numbers and numbers[-1] - numbers[0] != len(numbers) - 1:
        yield f"the recorded steps are {', '.join(map(str, numbers))}"


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
    """A saved capture whose bill still lacks what comes after.

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
            extra_ms = took_ms - (self.since_step - span.opened_step) * usual_ms
        saving_ms = _mean_ms(self.since_s - span.closed_s, self.since_step - span.closed_step)
        settled = self.manifest.settled(
            step_saving_ms=saving_ms, step_after_ms=after_ms, extra_ms=extra_ms
        )
        # Whoever took the capture away or deleted it has the bill as it stood then.
        with contextlib.suppress(FileNotFoundError):
            if self.path.exists():
                settled.save(self.path)
        return True


def _mean_ms(seconds: float, steps: int) -> float | None:
    return seconds * 1e3 / steps if steps > 0 else None

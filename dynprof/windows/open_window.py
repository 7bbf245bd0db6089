"""An open window, with what was noted at its opening."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynprof.backends.base import Load
from dynprof.plural import counted

if TYPE_CHECKING:
    from dynprof.backends import Backend, Recording
    from dynprof.requests.request import Request
    from dynprof.windows.window import Window

_ALL_THREADS = "step() is called by several threads: each call ends a step, all are recorded"
_ONE_THREAD = "step() is called by several threads: only the one that opened the window is recorded"
_BINDING = ("profile_memory", "memory_snapshot")

UNUSUAL = 3
"""A step is not believed to have more than this many times the events of the last window's steps:
the number of calls is an estimate, the last trace's events were counted."""


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
        due_s: Monotonic time from which on its limits are looked at again.
        moved_s: Monotonic time of the last step that moved it, or of opening.
        step_before_ms: Mean step time before.
        steps_from: Who ends its steps.
        open_ms: Time that opening took.
        closing: How the recording is closed.
        without: Activities of the plan that it does not watch.
        remarks: What was odd about its steps.
        load: What it held at the last look.
        free_mb: How many MB (10^6 bytes) the process might still get before opening.
        load_steps: Of how many whole steps that was.
        usual_events: How many events a step of the last window of the kind had; 0 for unknown.
        expected: What it is expected to cost; None until that is known, empty where it is little.
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
    steps_from: str = ""
    due_s: float = float("-inf")
    moved_s: float = 0.0
    open_ms: float = 0.0
    closing: str = ""
    without: tuple[str, ...] = ()
    step: int = 0
    remarks: list[str] = field(default_factory=list)
    load: Load = field(default_factory=Load)
    free_mb: float = 0.0
    load_steps: int = 0
    usual_events: int = 0
    expected: str | None = None

    def __post_init__(self) -> None:
        self.step, self.moved_s = self.opened_step, self.opened_s

    def look_at_load(self, *, inside_step: bool = False) -> Load | None:
        """Note what its recording holds, and return it; None where nothing has to be bounded."""
        load = self.window.load(inside_step=inside_step)
        if load and self.usual_events:
            most = UNUSUAL * self.usual_events * (self.window.recorded + 1)
            load = replace(load, events=min(load.events, most))
        self.load = load or self.load
        if load and not inside_step:
            self.load_steps = self.window.recorded
        return load

    @property
    def activities(self) -> tuple[str, ...]:
        """What was watched."""
        asked = self.request.plan.activities
        return tuple(name for name in asked if name not in self.without) or ("CPU",)

    def note_end(self, recording: Recording | None) -> None:
        """Note of a recording that was stopped, if there is any, what is to be said of it."""
        self.closing = recording.closing if recording else "nothing was kept"
        self.without = recording.without if recording else ()
        for text in recording.fallbacks if recording else ():
            self.remark(text)

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

    def why_lost(self, reason: str) -> str:
        """Say why a thread that may not end it lets it go, and what would not be bound to one."""
        text = f"{reason}; only the thread that opened the window could have kept it"
        config = self.request.config
        asked = [name for name in _BINDING if getattr(config, name)]
        return f"{text}; without {' and '.join(asked)} all are recorded" if asked else text

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

"""The driver of a window: it opens one, steps it and ends it, for operators and scripts alike."""

from __future__ import annotations

import atexit
import functools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.backends.base import Load
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.clock import iso
from dynprof.process.graph_captures import GRAPH_CAPTURES
from dynprof.process.rank import UNKNOWN
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynprof.backends import Backend, Recording
    from dynprof.backends.base import MakeFolder
    from dynprof.clock import Clock
    from dynprof.requests.request import Request
    from dynprof.wall import Wall
    from dynprof.windows.this_process import ThisProcess
    from dynprof.windows.window import Window

WAIT_S = 30.0
"""The time that the next window waits for the thread of one that was discarded."""


@dataclass(eq=False)
class WindowDriver:
    """Opens one window of this process, steps it, and ends it in one of three ways.

    :meth:`close` keeps what was recorded, :meth:`discard` drops it, and :meth:`abandon` leaves it
    to the parent of a forked child. Who drives decides when: the operator's loop, or a script's
    profile.

    Args:
        process: This process.
        wall: Keeps failures of an ending from the training loop.
        unended: Takes the window where its recording cannot end at once.
        request: What asks for the window.
        window: The engine.
        step: The job's number of the step that begins.

    Attributes:
        step: The step that is running.
        opened_step: The step that began as the window opened.
        backend: What records.
        thread: The thread that opened it; a recording that is bound to it moves there only.
        opened_s: Monotonic time of opening.
        opened_wall_s: Time of opening, seconds since the epoch.
        open_ms: Time that opening took.
        close_ms: Time that closing took.
        ended_wall_s: Time of closing or discarding, seconds since the epoch.
        closing: How the recording is closed.
        without: Activities of the plan that it does not watch.
        remarks: What was odd about its steps.
        steps_from: Who ends its steps.
        step_before_ms: Mean step time before.
        memory_mb: Resident memory of the process before opening.
        free_mb: How many MB (10^6 bytes) the process might still get before opening.
        moved_s: Monotonic time of the last step that moved it, or of opening.
        due_s: Monotonic time from which on its limits are looked at again.
        load: What it held at the last look.
        load_steps: Of how many whole steps that was.
        expected: What it is expected to cost; None until that is known, empty where it is little.
    """

    process: ThisProcess
    wall: Wall
    unended: UnendedWindows
    request: Request
    window: Window
    step: int
    open_ms: float = 0.0
    close_ms: float = 0.0
    ended_wall_s: float = 0.0
    closing: str = ""
    without: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)
    steps_from: str = ""
    step_before_ms: float | None = None
    memory_mb: float = 0.0
    free_mb: float = 0.0
    due_s: float = float("-inf")
    load: Load = field(default_factory=Load)
    load_steps: int = 0
    expected: str | None = None

    def __post_init__(self) -> None:
        self.backend: Backend = self.process.backend(self.request.plan.backend)
        self.thread = threading.current_thread()
        self.opened_step = self.step
        self.opened_s = self.moved_s = self.process.clock.now_s()
        self.opened_wall_s = self.process.clock.wall_s()

    def open(self, scratch: MakeFolder, give_way: Callable[[], None] | None = None) -> None:
        """Turn the profiler on and begin the first step; what fails leaves nothing open.

        Args:
            scratch: Makes a folder for what the profiler writes while it records.
            give_way: Called where another profiler is about to begin.

        Raises:
            BackendError: It cannot record now, with the reason.
        """
        prepare = functools.partial(
            self.backend.prepare, self.request.plan, self.process.rank, scratch
        )
        is_open = False
        try:
            self.window.open(prepare, self.step, give_way)
            is_open = True
        finally:
            if not is_open:
                self.discard()
        now_s = self.process.clock.now_s()
        self.open_ms = (now_s - self.opened_s) * 1e3
        self.window.resume(now_s)

    def end_step(self, now_s: float) -> bool:
        """End the step that is running; True if it was the last."""
        return self.window.end_step(now_s)

    def begin_step(self, step: int) -> None:
        """Begin the step that the job calls ``step``."""
        self.step = step
        self.window.begin_step(step)
        self.window.resume(self.process.clock.now_s())

    @property
    def movable(self) -> bool:
        """Whether the calling thread may step and end it."""
        return not self.window.bound_to_thread or self.thread is threading.current_thread()

    @property
    def has_lost_thread(self) -> bool:
        """Whether the only thread that could step and end it is gone."""
        return self.window.bound_to_thread and not self.thread.is_alive()

    def blocked_by(self) -> str | None:
        """Return why the calling thread cannot step or end it at this moment; None where it can."""
        if not self.movable:
            return f"only the thread that opened it may: {self.thread.name}"
        return self.window.blocked_by()

    def close(self) -> Recording | None:
        """Stop recording, and return the recording; None where no step began that it could keep.

        The recording stays the window's until :meth:`release`: whatever fails before, a discard
        still ends it.
        """
        clock = self.process.clock
        began_s = clock.now_s()
        recording = self.window.close()
        self.close_ms = (clock.now_s() - began_s) * 1e3
        self.ended_wall_s = clock.wall_s()
        self.closing = recording.closing if recording else "nothing was kept"
        self.without = recording.without if recording else ()
        for text in recording.fallbacks if recording else ():
            self.remark(text)
        return recording

    def release(self) -> None:
        """Forget the recording: another owner has it, which saves or discards it."""
        self.window.recording = None

    def discard(self) -> None:
        """Drop what was recorded; where this thread may not, one that may does so later."""
        self.ended_wall_s = self.process.clock.wall_s()
        self.unended.discard(self)

    def end_recording(self) -> bool:
        """Drop the recording if the calling thread may; return whether there is none any more."""
        recording = self.window.recording
        if recording is None:
            return True
        attempt = self.wall.attempt
        attempt("discarding what records with it", recording.companions.discard)
        if self.has_lost_thread:
            attempt("abandoning the recording", recording.abandon)
        elif self.blocked_by():
            return False
        else:
            attempt("discarding the recording", recording.discard)
            if self.window.blocked_by():  # it could not end
                return False
        self.release()
        return True

    def abandon(self) -> None:
        """Leave the recording to the parent, in a child that was just forked."""
        if recording := self.window.recording:
            recording.abandon()
            recording.companions.abandon()

    def remark(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def manifest(self, reason: str = "") -> Manifest:
        """Return the manifest of the window, as far as it is known at its end.

        Args:
            reason: Why it is not complete; empty where it is.
        """
        window, request, process = self.window, self.request, self.process
        root = str(process.layout.root)
        seconds = window.durations_s
        during_ms = round(sum(seconds) / len(seconds) * 1e3, 4) if seconds else None
        asked = request.plan.activities
        return Manifest(
            dynprof=__version__,
            backend=self.backend.name,
            versions=dict(self.backend.versions()),
            host=process.layout.host,
            pid=process.layout.pid,
            rank=process.rank.number,
            world_size=process.rank.world_size,
            rank_source="" if process.rank.source == UNKNOWN else process.rank.source,
            directory=root if root.isprintable() else "",  # a manifest is UTF-8, names any bytes
            request=RequestRecord(
                number=request.number,
                edited_at=iso(request.edited_at_s),
                sha256=request.sha256,
                config=request.config.to_json(),
            ),
            steps=Steps(
                first=window.first,
                last=window.last,
                recorded=window.recorded,
                warmup=window.warmup,
                source=self.steps_from,
            ),
            activities=tuple(name for name in asked if name not in self.without) or ("CPU",),
            opened_at=iso(self.opened_wall_s),
            closed_at=iso(self.ended_wall_s),
            complete=not reason,
            reason=reason,
            closing=self.closing,
            remarks=(*map(str, request.remarks), *self.remarks, *_gaps(window)),
            cost=Cost(
                open_ms=round(self.open_ms, 3),
                close_ms=round(self.close_ms, 3),
                step_before_ms=self.step_before_ms and round(self.step_before_ms, 4),
                step_during_ms=during_ms,
                events=self.load.events or None,
            ),
        )


class UnendedWindows:
    """Discarded windows whose recording could not end yet; it does once a thread may end it.

    Args:
        clock: Tells the time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._since_s = clock, 0.0
        self._kept: set[WindowDriver] = set()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._kept)

    @property
    def are_waited_for(self) -> bool:
        """Whether another window had better wait for them; not for ever."""
        return bool(self._kept) and self._clock.now_s() - self._since_s < WAIT_S

    def discard(self, driver: WindowDriver) -> None:
        """End the recording of a window, now or later."""
        if driver.window.recording:
            self._kept.add(driver)
            self._since_s = self._clock.now_s()
            self.look()
        if self._kept:
            atexit.register(self._end_with_process)

    def look(self) -> None:
        """End those that the calling thread may."""
        for driver in self._kept.copy():
            if driver.end_recording():
                self._kept.discard(driver)

    def abandon(self) -> None:
        """Leave them to the parent, in a child that was just forked."""
        for driver in self._kept:
            driver.abandon()
        self._kept.clear()

    def _end_with_process(self) -> None:
        GRAPH_CAPTURES.process_ends()
        self.look()


def _gaps(window: Window) -> Iterator[str]:
    """Yield a remark on recorded steps whose numbers do not follow each other."""
    numbers = window.numbers[: window.recorded]
    if numbers and numbers[-1] - numbers[0] != len(numbers) - 1:
        yield f"the recorded steps are {', '.join(map(str, numbers))}"

"""The driver of a window: it opens, steps and ends one, for operators and for scripts."""

from __future__ import annotations

import atexit
import functools
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.backends.base import Load
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.runtime.clock import iso
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.process_hooks import call_in_child
from dynprof.runtime.rank import UNKNOWN
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynprof.backends import Backend, Recording
    from dynprof.backends.base import MakeFolder
    from dynprof.requests.request import Request
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.windows.process_context import ProcessContext
    from dynprof.windows.window import Window

WAIT_S = 30.0
"""How long the next window waits for the thread of a discarded one."""


@dataclass(eq=False)
class WindowDriver:
    """Opens one window of this process, steps it, and ends it in one of three ways.

    :meth:`close` keeps the recording, :meth:`discard` drops it, and :meth:`abandon` leaves it to
    the parent of a forked child. The caller decides when: the operator's loop, or a script's
    profile.

    Args:
        process: This process.
        boundary: Keeps failures of a discard from the training loop.
        request: The request for the window.
        window: The engine.
        step: The job's number of the step that begins.

    Attributes:
        step: The running step.
        opened_step: The step that began as the window opened.
        backend: The backend that records.
        thread: The thread that opened it. A recording bound to a thread moves only on this one.
        opened_s: Monotonic time of opening.
        opened_wall_s: Time of opening, seconds since the epoch.
        open_ms: Time that opening took.
        close_ms: Time that closing took.
        ended_wall_s: Time of closing or discarding, seconds since the epoch.
        closing: How the recording is closed.
        without: Activities of the plan that it does not record.
        remarks: Remarks on its steps.
        steps_from: The source of its steps.
        step_before_ms: Mean step time before.
        step_hour_ms: Median step time of the hour before.
        memory_mb: Resident memory of the process before opening.
        free_mb: Memory in MB (10^6 bytes) that the process could still get before opening.
        moved_s: Monotonic time of the last step that moved it, or of opening.
        due_s: Monotonic time of the next check of its limits.
        load: Its load at the last check.
        load_steps: The whole steps in that load.
        expected: Its expected cost; None while unknown, empty if it is small.
    """

    process: ProcessContext
    boundary: ErrorBoundary
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
    step_hour_ms: float | None = None
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

    def open(self, scratch: MakeFolder, close_for_other: Callable[[], None] | None = None) -> None:
        """Turn the profiler on and begin the first step; a failure leaves nothing open.

        Args:
            scratch: Makes a folder for the files that the profiler writes while it records.
            close_for_other: Called when another profiler is about to begin.

        Raises:
            BackendError: It cannot record now, with the reason.
        """
        prepare = functools.partial(
            self.backend.prepare, self.request.plan, self.process.rank, scratch
        )
        is_open = False
        try:
            self.window.open(prepare, self.step, close_for_other)
            is_open = True
        finally:
            if not is_open:
                self.discard()
        now_s = self.process.clock.now_s()
        self.open_ms = (now_s - self.opened_s) * 1e3
        self.window.resume(now_s)

    def end_step(self, now_s: float) -> bool:
        """End the running step; return whether it was the last."""
        return self.window.end_step(now_s)

    def begin_step(self, step: int) -> None:
        """Begin the step that the job calls ``step``."""
        self.step = step
        self.window.begin_step(step)
        self.window.resume(self.process.clock.now_s())

    @property
    def movable(self) -> bool:
        """Whether the calling thread may step and end it."""
        return _is_movable(self.window, self.thread)

    @property
    def has_lost_thread(self) -> bool:
        """Whether the only thread that could step and end it is gone."""
        return _has_lost_thread(self.window, self.thread)

    def blocked_by(self) -> str | None:
        """Return why the calling thread cannot step or end it now; None if it can."""
        if not self.movable:
            return f"only the thread that opened it can step or close it: {self.thread.name}"
        return self.window.blocked_by()

    def close(self) -> Recording | None:
        """Stop recording and return the recording; None if no step began that it could keep.

        Without such a step the recording is discarded. Else it belongs to the window until
        :meth:`release`: if anything fails before that, a discard still ends it.
        """
        clock = self.process.clock
        began_s = clock.now_s()
        recording = self.window.close()
        if recording is None:
            self.discard()
        self.close_ms = (clock.now_s() - began_s) * 1e3
        self.ended_wall_s = clock.wall_s()
        self.closing = recording.closing if recording else "nothing was kept"
        self.without = recording.without if recording else ()
        for text in recording.fallbacks if recording else ():
            self.remark(text)
        return recording

    def release(self) -> None:
        """Forget the recording: its new owner saves or discards it."""
        self.window.recording = None

    def discard(self) -> None:
        """Drop the recording; if this thread may not, a thread that may does so later."""
        self.ended_wall_s = self.process.clock.wall_s()
        if recording := self.window.recording:
            self.release()
            UNENDED.discard(recording, self.thread, self.boundary)

    def abandon(self) -> None:
        """Leave the recording to the parent, in a new forked child."""
        if recording := self.window.recording:
            recording.abandon()
            recording.collectors.abandon()

    def remark(self, text: str) -> None:
        """Add a remark, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def manifest(self, reason: str = "") -> Manifest:
        """Return the manifest of the window, with all that is known at its end.

        Args:
            reason: Why it is not complete; empty if it is.
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
            role=process.layout.role,
            world_size=process.rank.world_size,
            rank_source="" if process.rank.source == UNKNOWN else process.rank.source,
            directory=root if root.isprintable() else "",  # a manifest is UTF-8, names need not be
            request=RequestRecord(
                number=request.number,
                edited_at=iso(request.edited_at_s),
                sha256=request.sha256,
                config=request.config.to_json(),
                trigger=request.trigger,
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
                step_hour_ms=self.step_hour_ms,
                step_during_ms=during_ms,
                events=self.load.events or None,
            ),
        )


@dataclass(frozen=True)
class _Unended:
    recording: Recording
    thread: threading.Thread
    boundary: ErrorBoundary


class UnendedRecordings:
    """Recordings of discarded windows; each ends as soon as a thread that may end it calls.

    They may outlive the session or the profile that opened them.
    """

    def __init__(self) -> None:
        self._since_s = 0.0
        self._kept: deque[_Unended] = deque()

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._kept)

    @property
    def delay_next(self) -> bool:
        """Whether the next window waits for them, for up to ``WAIT_S``."""
        return bool(self._kept) and time.monotonic() - self._since_s < WAIT_S

    def discard(
        self, recording: Recording, thread: threading.Thread, boundary: ErrorBoundary
    ) -> None:
        """End a recording, now or later.

        Args:
            recording: The recording.
            thread: The thread that opened its window.
            boundary: Keeps failures of the end from the training loop.
        """
        boundary.attempt("discarding the collectors", recording.collectors.discard)
        self._kept.append(_Unended(recording, thread, boundary))
        self._since_s = time.monotonic()
        self.end_possible()
        if self._kept:
            atexit.register(self._end_with_process)

    def end_possible(self) -> None:
        """End those that the calling thread may end."""
        for _ in range(len(self._kept)):
            try:
                one = self._kept.popleft()  # so that only one thread ends it
            except IndexError:
                return
            has_ended = False
            try:
                has_ended = self._end(one)
            finally:  # also after Ctrl-C, for the next call
                if not has_ended:
                    self._kept.append(one)

    def _end(self, one: _Unended) -> bool:
        """End a recording if the calling thread may do so now; return whether it has ended."""
        is_lost = _has_lost_thread(one.recording, one.thread)
        if not (is_lost or _is_movable(one.recording, one.thread)):
            return False
        with GRAPH_CAPTURES.block_captures_now() as are_held_back:
            if not are_held_back or _is_blocked(one):
                return False
            if is_lost:
                one.boundary.attempt("abandoning the recording", one.recording.abandon)
                return True
            one.boundary.attempt("discarding the recording", one.recording.discard)
            return not _is_blocked(one)  # else it could not end

    def abandon(self) -> None:
        """Leave them to the parent, in a new forked child."""
        while self._kept:
            self._kept.popleft().recording.abandon()

    def _end_with_process(self) -> None:
        GRAPH_CAPTURES.process_ends()
        self.end_possible()


UNENDED = UnendedRecordings()
"""The discarded recordings of the process."""
call_in_child(UNENDED.abandon)


def _is_blocked(one: _Unended) -> bool:
    """Return whether it cannot end now; False if the check itself fails."""
    found: list[str | None] = []
    one.boundary.attempt(
        "checking whether a recording is blocked", lambda: found.append(one.recording.blocked_by())
    )
    return any(found)


def _is_movable(recorded: Window | Recording, thread: threading.Thread) -> bool:
    """Return whether the calling thread may step and end what a thread has opened."""
    return not recorded.bound_to_thread or thread is threading.current_thread()


def _has_lost_thread(recorded: Window | Recording, thread: threading.Thread) -> bool:
    """Return whether only the thread that opened it could end it, and has ended."""
    return recorded.bound_to_thread and not thread.is_alive()


def _gaps(window: Window) -> Iterator[str]:
    """Yield a remark if the numbers of the recorded steps are not consecutive."""
    numbers = window.numbers[: window.recorded]
    if numbers and numbers[-1] - numbers[0] != len(numbers) - 1:
        yield f"the recorded steps are {', '.join(map(str, numbers))}"

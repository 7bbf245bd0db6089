"""The work of ``step()`` when something is due: open, step and end the operator's windows."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import deque
from time import time_ns
from typing import TYPE_CHECKING

from dynprof.captures.deliveries import delivery_of
from dynprof.captures.exporter import Export
from dynprof.errors import BackendError, LostWindowError, Problem, describe
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.layout import window_dir_name
from dynprof.runtime.plural import counted
from dynprof.windows.admission import Admission
from dynprof.windows.cost_account import Span
from dynprof.windows.driver import UNENDED, WindowDriver
from dynprof.windows.early_close import (
    update_load,
    why_early,
    why_no_step,
    why_thread_stopped,
    why_too_late,
    why_too_much_inside,
)
from dynprof.windows.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from dynprof.backends import Recording
    from dynprof.captures.deliveries import Delivery
    from dynprof.captures.exporter import Exporter
    from dynprof.captures.manifest import Manifest
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.request import Request
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.process_context import ProcessContext

    OnSaved = Callable[[Span, Delivery, str, Path, Manifest], None]

COST_AFTER_STEPS = 3
"""Steps after which the expected cost is logged: the first step alone may mislead."""
_OTHER_PROFILER = "the script started a profiler of its own"
_ALL_THREADS = "step() is called by several threads: each call ends a step, all are recorded"
_ONE_THREAD = "step() is called by several threads: only the one that opened the window is recorded"
_BINDING = ("profile_memory", "memory_snapshot")
"""Settings with which only the thread that opened a window is recorded."""


class Loop:
    """Opens, moves and closes windows at step boundaries, one thread at a time.

    No graph capture begins during a turn: the turn and the capture's thread would wait for each
    other.

    Args:
        process: This process.
        inbox: Has the requests and orders of other threads.
        exporter: Takes over stopped recordings.
        journal: The log.
        boundary: Keeps failures from the training loop.
        costs: The step times of the job.
        on_saved: Called by the exporter. Takes when the window was open, the delivery of its
            capture, why it closed early, the path of its manifest, and the manifest.

    Attributes:
        admission: Decides whether a request may open.
        lock: Lets one thread in at a time.
    """

    def __init__(
        self,
        process: ProcessContext,
        inbox: Inbox,
        exporter: Exporter,
        journal: Journal,
        boundary: ErrorBoundary,
        costs: CostAccount,
        on_saved: OnSaved,
    ) -> None:
        self._process, self._clock = process, process.clock
        self._inbox, self._exporter, self._logged = inbox, exporter, ""
        self._journal, self._boundary, self._costs = journal, boundary, costs
        self._on_saved = on_saved
        self._open: WindowDriver | None = None
        self._claimed: Request | None = None  # the request that is being opened
        self._noted: DeferredSteps | None = None
        self.lock = WindowLock(before=self._before_turn, after=self._after_turn)
        self.admission = Admission(process, inbox, exporter)
        self._after_turn()  # an earlier session may have left a recording to its thread

    @property
    def busy(self) -> bool:
        """Whether a window is open or being opened."""
        return bool(self._claimed or self._open)  # in the order in which they are set

    @property
    def occupied(self) -> bool:
        """Whether a window is open, or its capture is being saved."""
        return self.busy or self._exporter.busy

    @property
    def open_window(self) -> WindowDriver | None:
        """The open window, to read."""
        return self._open

    def turn(self, *, a_step_ended: bool = True) -> None:
        """Take a turn at this step boundary.

        Args:
            a_step_ended: False if the script calls in the middle of a step.
        """
        met = None if self._claimed or not a_step_ended else self._open
        if a_step_ended:
            self._inbox.thread = threading.current_thread()
        with self.lock.hold() as is_held:
            if is_held:
                self._boundary.attempt_or("a step", lambda: self._turn(met), self._discard)

    def close(self, reason: str) -> None:
        """Close the open window in the middle of a step, and keep its recording.

        The recording is lost if only another thread may close it.
        """
        self._close_where(lambda _: reason, may_lose=True)

    def close_for_other(self) -> None:
        """Close the open window, on the thread where another profiler is about to begin.

        If only another thread may close it, that thread does so at its next step.
        """
        self._close_where(lambda _: _OTHER_PROFILER)

    def check(self) -> None:
        """Close a window whose step records too much or never ends; on a thread of dynprof."""
        if self._open and self._why_inside(self._open):
            self._close_where(self._why_inside)  # a step may have ended since

    def _why_inside(self, current: WindowDriver) -> str:
        forgotten = why_no_step(current, self._clock.now_s())
        return forgotten or why_too_much_inside(current)

    def _close_where(self, why: Callable[[WindowDriver], str], *, may_lose: bool = False) -> None:
        """Close the window if there is a reason, if need be at the end of its step."""
        with self.lock.hold() as is_held:
            current = self._open
            if not current or not (reason := why(current)):
                return
            if not is_held:  # a signal handler calls during a turn
                self._inbox.request_close(reason)
            else:
                close = functools.partial(self._close_inside_step, current, reason, may_lose)
                self._boundary.attempt_or("closing", close, self._discard)

    def _close_inside_step(self, current: WindowDriver, reason: str, may_lose: bool) -> None:
        """Close a window in the middle of a step, or order that at its end."""
        if may_lose and not current.movable:
            self._discard(LostWindowError(_why_lost(current, reason)))
        elif current.blocked_by():
            self._inbox.request_close(reason)
        else:
            if current.window.state == "recording":
                current.remark(f"the trace ends inside step {current.step}, which is not counted")
            self._close(current, reason, inside_step=True)

    def discard(self, reason: str) -> None:
        """Discard the open window: it could not be closed before the process ended."""
        with self.lock.hold() as is_held:
            if is_held and self._open:
                lose = functools.partial(self._lose, self._open, reason)
                self._boundary.attempt_or("discarding the window", lose, self._discard)

    def _lose(self, current: WindowDriver, reason: str) -> None:
        blocked_by = current.blocked_by()
        self._discard(LostWindowError(f"{reason}, but {blocked_by}" if blocked_by else reason))

    def abandon(self) -> None:
        """Leave the windows to the parent, in a new forked child."""
        if self._open:
            self._open.abandon()

    def owns_window(self) -> bool:
        """Whether the calling thread opened the window."""
        return bool(self._open and self._open.thread is threading.current_thread())

    def _before_turn(self) -> None:
        if self._noted:
            self._boundary.attempt_or("a step", self._count_noted, self._discard)
        UNENDED.end_possible()

    def _count_noted(self) -> None:
        if self._noted and self._open:
            self._noted.count()
        self._stop_deferring()

    def _stop_deferring(self) -> None:
        self._noted = None
        self._inbox.restore_on_due()

    def _after_turn(self) -> None:
        self._inbox.end_turn(window_open=self._open is not None)
        if UNENDED:
            self._inbox.wake()

    def _turn(self, met: WindowDriver | None) -> None:
        """Take a turn, with the window that was open when the step ended.

        A window that opened while this thread waited for its turn did not record that step.
        """
        if self._open and self._open is met:
            self._end_step(self._open)
        if not self._open:
            self._open_if_it_is_time()
        if self._open and self._open.movable:
            window = self._open.window
            if not window.recorded:
                update_load(self._open)
            window.resume(self._clock.now_s())
            if window.takes_steps_later:
                self._noted = DeferredSteps(self._open, self._inbox)
                self._inbox.on_due = self._noted.note

    def _end_step(self, current: WindowDriver) -> None:
        """End a step of the window; each call of ``step()`` ends one, on any thread."""
        now_s = self._clock.now_s()
        current.step += 1
        if current.thread is not threading.current_thread():
            current.remark(_ONE_THREAD if current.window.bound_to_thread else _ALL_THREADS)
        if not current.movable:
            self._end_step_elsewhere(current, now_s)
            return
        current.moved_s = now_s
        if blocked_by := current.blocked_by():
            text = f"step {current.step} is counted with step {current.step - 1}: {blocked_by}"
            current.remark(text)
            hint = "the manifest names all such steps"
            self._log_once(f"{text}; {hint}", kind=f"{blocked_by}; {hint}")
            return
        finished = current.end_step(now_s)
        reason = "" if finished else self._order_or_limit(current, now_s)
        if finished or reason:
            self._close(current, reason)
        else:
            if self._expect_cost(current):
                self._log_open(current, f"recording {current.window.asked}")
            current.begin_step(current.step)

    def _end_step_elsewhere(self, current: WindowDriver, now_s: float) -> None:
        """End a step on a thread that may not move the window: wait, or discard the window."""
        reason = why_thread_stopped(current, now_s) or self._order_or_limit(current, now_s)
        if reason:
            self._discard(LostWindowError(_why_lost(current, reason)))
        else:
            self._log_once(
                "steps of other threads are not recorded: the window is bound to one thread"
            )

    def _order_or_limit(self, current: WindowDriver, now_s: float) -> str:
        return self._inbox.close_reason or why_early(current, now_s)

    def _open_if_it_is_time(self) -> None:
        request = self._inbox.waiting
        if request is None or not self.admission.is_due(request):
            return
        is_known = False
        try:
            blocked = self.admission.blocked_by(request)
            is_known = True
        finally:
            if not is_known and self._inbox.take(request):
                self._claimed = request  # so that it is given up
        if blocked and blocked.effect != "refused":
            self._journal.note_blocked(request.number, blocked.reason)
            return
        self._claimed = request
        if self._inbox.take(request):  # else replaced or cancelled; the next step checks again
            if blocked:
                self._journal.report_refusal(request.number, [blocked.reason])
            else:
                self._open_window(request)
        self._claimed = None

    def _open_window(self, request: Request) -> None:
        step, warmup = self._inbox.step, request.config.warmup
        window = Window(warmup, request.config.active, step + warmup)
        current = WindowDriver(self._process, self._boundary, request, window, step)
        current.memory_mb, current.free_mb = self._process.memory_mb(), self._process.free_mb()
        current.step_before_ms = self._costs.window_opens()
        current.step_hour_ms = self._costs.hour_ms
        current.steps_from = self._inbox.steps_from
        if capture := self.admission.waited_for(request):
            current.remark(f"the window waited until step {step}: {capture}")
        self._logged = ""
        self._open = current
        try:
            current.open(
                functools.partial(self._process.make_scratch, request), self.close_for_other
            )
        except BackendError as error:  # the backend gave a reason: a refusal, not a failure
            self._open = None
            self._journal.report_refusal(request.number, [str(Problem(f"{error}.", "/backend"))])
            return
        planned, fallbacks = request.plan.fallbacks, current.window.fallbacks
        news = [text for text in fallbacks if text not in planned]
        text = f"opened at step {step} in {current.open_ms:.1f} ms; "
        current.expected = self._costs.expected.at_opening(request) or None
        self._log_open(current, f"{text}recording {current.window.asked}", news)
        if fallbacks != planned:
            self._journal.set_status(remarks=(*fallbacks, *map(str, request.remarks)))

    def _log_open(self, current: WindowDriver, text: str, news: Sequence[str] = ()) -> None:
        """Log that a window is open, its expected cost, and other news."""
        expected = current.expected or ""
        text = "\n".join([f"{text}; {expected}" if expected else text, *news])
        self._journal.report(current.request.number, "open", text, expected=expected)

    def _expect_cost(self, current: WindowDriver, *, after: int = COST_AFTER_STEPS) -> bool:
        """Estimate the save cost after the first steps; return whether that is news."""
        if current.expected is not None or current.load_steps < after:
            return False
        each = current.load.events // current.load_steps
        step_s = (self._clock.now_s() - current.opened_s) / current.load_steps
        current.expected = self._costs.expected.by_steps(current.request, each, step_s)
        return bool(current.expected)

    def _close(self, current: WindowDriver, reason: str, *, inside_step: bool = False) -> None:
        """Stop the recording and give it to the exporter; without a ``reason`` it is complete."""
        update_load(current, inside_step=inside_step)
        if late := why_too_late(current):
            self._discard(LostWindowError(late))
            return
        self._expect_cost(current, after=1)
        recording = current.close()
        self._journal.report(
            current.request.number,
            "saving",
            _how_closed(current, reason),
            loud=bool(reason),
            expected=current.expected or "",
        )
        self._submit(current, recording, reason)
        self._open = None
        self.admission.note_success(current.backend.name)

    def _discard(self, error: Exception) -> None:
        """Discard a window; it leaves a manifest with the reason."""
        claimed, self._claimed = self._claimed, None
        if claimed and not self._open and claimed is not self._inbox.waiting:  # else no answer
            if not isinstance(error, LostWindowError):
                self.admission.note_failure(claimed.plan.backend)
            self._journal.report(claimed.number, "failed", f"not opened: {describe(error)}")
        if self.lock.has_deferred or not self._open:  # the deferred end closes it
            return
        current, self._open = self._open, None
        self._stop_deferring()
        current.discard()
        reason = describe(error)
        if not isinstance(error, LostWindowError):
            self.admission.note_failure(current.backend.name)
            reason = f"the {current.backend.name} backend failed: {reason}"
        self._journal.error(f"request {current.request.number}: given up; {reason}")
        if self._boundary.attempt(
            "leaving a manifest", lambda: self._submit(current, None, reason)
        ):  # then only this reports it
            self._journal.report(current.request.number, "failed", reason)

    def _submit(self, current: WindowDriver, recording: Recording | None, reason: str) -> None:
        """Submit an ended window to the exporter, even without a recording.

        Args:
            current: The window.
            recording: Its recording; None if that is lost.
            reason: Why it is not complete; empty if it is.
        """
        layout, request, window = self._process.layout, current.request, current.window
        manifest = current.manifest(reason)
        delivery = delivery_of(request.config, layout, self._process.rank)
        span = Span(current.opened_s, current.opened_step, self._clock.now_s(), self._inbox.step)
        parent = delivery.destination.staging_dir
        export = Export(
            recording=recording,
            manifest=manifest,
            folder=parent
            / window_dir_name(window.first, window.last, request.edited_at_s, layout.role),
            trace_name=layout.trace_name(current.ended_wall_s, current.backend.trace_suffix),
            layout=layout,
            least_free_mb=request.config.limits.min_free_disk_mb,
            on_end=functools.partial(self._on_saved, span, delivery, reason),
            wait_s=delivery.wait_s if delivery.destination.is_direct else None,
        )
        if recording:
            current.release()
        self._exporter.submit(export)

    def _log_once(self, text: str, kind: str = "") -> None:
        """Log a line unless the last one has the same kind, which is by default the text itself."""
        if (kind or text) != self._logged:
            self._logged = kind or text
            self._journal.info(text)


def _why_lost(current: WindowDriver, reason: str) -> str:
    """Return why a thread that may not end a window discards it, and what binds the window."""
    text = f"{reason}; only the thread that opened the window could have kept it"
    asked = [name for name in _BINDING if getattr(current.request.config, name)]
    return f"{text}; without {' and '.join(asked)} all are recorded" if asked else text


def _how_closed(current: WindowDriver, reason: str) -> str:
    """Return how a window closed, for the log; ``reason`` is why it is not complete."""
    window = current.window
    text = f"closed at step {current.step} in {current.close_ms:.2f} ms ({current.closing}), "
    text += f"{window.recorded:,} of {counted(window.active or 0, 'step')}"
    text += f" ({window.kept})" if reason and window.recorded else ""
    return text + (f"; early: {reason}" if reason else "")


TURN_EVERY_S = 0.25
"""Longest time without a turn, which checks the window's limits."""


class _Here(threading.local):
    """State of a thread; its id would not do, as the system reuses ids."""

    noting: object = None


_HERE = _Here()


class DeferredSteps:
    """Replaces the turn of ``step()`` by a note, where a recording accepts steps later.

    A turn takes some 50 microseconds when the job fills the CPU's caches, a note a tenth of
    that. A turn is needed for another thread, a step number out of sequence, an order, the last
    step, and after :data:`TURN_EVERY_S`.

    A note takes no lock. One thread notes, any thread may count. A note appended after the count is
    removed by its own thread. So each step is either counted from its note, or gets a turn.

    Args:
        current: The window, which has a turn now.
        inbox: Has the number of the running step. The window has its own number, if the script has
            set another one in the meantime.
    """

    def __init__(self, current: WindowDriver, inbox: Inbox) -> None:
        done, asked = current.window.progress
        step = inbox.step  # once: another thread may be ending one
        self._current, self._inbox = current, inbox
        self._now_s = current.process.clock.now_s
        self._behind = step - current.step
        self._next, self._last = step + 1, step + asked - done
        self._until_s = self._now_s() + TURN_EVERY_S
        self._steps: deque[tuple[int, float, int]] = deque()
        self._counted = False
        self._token = _HERE.noting = object()

    def note(self) -> None:
        """Note the step that has just begun, or run a turn if it needs one.

        ``step()`` calls this directly, and all code is inline: each call costs microseconds when
        the job fills the caches.
        """
        inbox = self._inbox
        step, now_s = inbox.step, self._now_s()
        disturbed = inbox.close_reason or inbox.woken or _HERE.noting is not self._token
        if not (disturbed or step != self._next or step >= self._last or now_s >= self._until_s):
            noted = (step - self._behind, now_s, time_ns())
            self._steps.append(noted)
            self._next = step + 1
            if not self._counted or not self._remove_late_note(noted):
                return
        inbox.turn()

    def _remove_late_note(self, noted: tuple[int, float, int]) -> bool:
        """Remove a note made after the count; return False if it was counted after all."""
        try:
            self._steps.remove(noted)
        except ValueError:
            return False
        return True

    def count(self) -> None:
        """Count the noted steps in the window, each once; no more are noted."""
        self._counted = True
        while self._steps:
            try:
                self._current.step, now_s, at_ns = self._steps.popleft()
            except IndexError:  # it was taken back
                return
            self._current.window.count_noted(self._current.step, now_s, at_ns)


TURN_WAIT_S = 60.0
"""How long a thread waits for another that opens or closes a window; then it skips its turn."""


class WindowLock:
    """Lets one thread in at a time, and no thread twice: a signal handler may call again.

    No graph capture begins during a turn.

    Args:
        before: Called at the start of each turn.
        after: Called at the end of each turn, also after an exception.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before, self._after = before, after
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._deferred: Callable[[], None] | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Wait for this thread's turn, as a context manager that yields whether it got one."""
        if self._is_held_here or not self._lock.acquire(timeout=TURN_WAIT_S):
            yield False
            return
        self._owner = threading.get_ident()
        try:
            with GRAPH_CAPTURES.block_captures_now():
                self._before()
                yield True
        finally:
            self._end()

    def _end(self) -> None:
        """Release the lock, and run the deferred action."""
        try:
            self._after()
        finally:
            self._owner = None
            self._lock.release()
            action, self._deferred = self._deferred, None
            if action:
                action()

    @property
    def has_deferred(self) -> bool:
        """Whether an action is deferred until the end of the current turn."""
        return self._deferred is not None

    def defer(self, action: Callable[[], None]) -> bool:
        """Run ``action`` after the current turn of this thread; return False if it has none.

        A signal handler calls this during a turn. The action also runs if the turn raises.
        """
        if not self._is_held_here:
            return False
        self._deferred = action
        return True

    @property
    def _is_held_here(self) -> bool:
        return self._owner == threading.get_ident()

"""Windows that a script opens itself, from its arguments to a closed recording."""

from __future__ import annotations

import atexit
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.backends import all_backends
from dynprof.backends.torch.kineto import keep_kineto_quiet
from dynprof.errors import BackendError, ProfileError
from dynprof.profiler.closed_window import ClosedWindow
from dynprof.profiler.output_paths import remove_stale_files
from dynprof.requests.plan import ProcessState, Refusal, plan
from dynprof.requests.request import Request
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.layout import Layout
from dynprof.runtime.process_hooks import call_at_forked_end, call_in_child
from dynprof.runtime.rank import find_rank
from dynprof.runtime.standard_streams import say, warn_script
from dynprof.windows.driver import UNENDED, WindowDriver
from dynprof.windows.process_context import ProcessContext
from dynprof.windows.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.backends import Backend
    from dynprof.config import ProfilerConfig
    from dynprof.errors import Problem
    from dynprof.requests.plan import Plan, Script
    from dynprof.runtime.safe_write import PrivateFolder
    from dynprof.windows.window import ProfilerAction


END_ACTIONS: list[Callable[[], object]] = []
"""Actions at the end of the process, after all windows are closed."""
_BOUNDARY = ErrorBoundary(StderrNotes())
_open_now: set[ScriptWindows] = set()
"""Objects with an open window; this may be the last reference to them.

Always iterate over a copy: other threads and finalizers add and remove elements."""


class ScriptWindows:
    """Opens windows for a script, one after the other, with the same settings.

    Args:
        config: What to record.
        script: Options that a config cannot have.
        marks_steps: Whether the trace marks each step.

    Attributes:
        end_at_exit: Ends and saves a window that is open when the process ends; None if nothing
            can.
        is_of_parent: Whether this process was forked while the window was open.

    Raises:
        BackendError: No profiler can record here, or not what was requested.
    """

    end_at_exit: Callable[[], object] | None = None
    is_of_parent = False

    def __init__(self, config: ProfilerConfig, script: Script, *, marks_steps: bool) -> None:
        rank = find_rank()
        self._layout = Layout.here(Path.cwd(), rank.number)
        backends = all_backends(for_script=True, detaches=not script.in_place)
        self._process = ProcessContext(self._layout, rank, backends)
        self._plan = self._planned(config, script)
        keep_kineto_quiet(self._process.backend(self._plan.backend).capabilities())
        self._marks_steps = marks_steps
        if not script.in_place:
            self._wait_until_known()
        self._windows = 0
        self._current: WindowDriver | None = None
        if self._plan.remarks:
            warn_script("; ".join(_in_script(remark) for remark in self._plan.remarks))

    def _wait_until_known(self) -> None:
        """Wait for the self-test of the detached close; it takes seconds once per build of torch.

        The script requested that close and is not training yet. The backend has a timeout.
        """
        backend = self._process.backend(self._plan.backend)
        while any(
            one.effect == "prefer wait" for one in backend.blocked_by(self._plan, elsewhere=True)
        ):
            time.sleep(0.05)

    def _planned(self, config: ProfilerConfig, script: Script) -> Plan:
        outcome = plan(
            config,
            ProcessState(0, self._process.rank.number, self._process.capabilities(), float("inf")),
            script,
        )
        if isinstance(outcome, Refusal):
            raise BackendError("; ".join(map(_in_script, outcome.problems)))
        return outcome

    @property
    def activities(self) -> tuple[str, ...]:
        """The recorded activities, without those that are missing here."""
        return self._plan.activities

    @property
    def window(self) -> Window | None:
        """The open window."""
        return self._current.window if self._current else None

    def open(self, action_at: Callable[[int], ProfilerAction], step: int) -> None:
        """Open a window.

        Args:
            action_at: Returns the action of the window's n-th step, from 0; called once per step.
            step: The script's number of the step that begins.

        Raises:
            BackendError: The window cannot open now; the error has the reason.
        """
        backend = self._process.backend(self._plan.backend)
        if blocked_by := GRAPH_CAPTURES.on_this_thread() or self._blocked_by(backend):
            raise BackendError(f"the profiler cannot start: {blocked_by}")
        self._process.learn_rank()
        self._windows += 1
        wall_s = self._process.clock.wall_s()
        request = Request(self._windows, self._plan, wall_s, "", self._plan.remarks)
        window = Window(0, None, step, action_at=action_at, marks_steps=self._marks_steps)
        current = WindowDriver(self._process, _BOUNDARY, request, window, step)
        _discard_dead()
        current.open(self._make_scratch)
        self._current, self.is_of_parent = current, False
        _open_now.add(self)
        call_at_forked_end(_end_all)

    def _blocked_by(self, backend: Backend) -> str:
        """Wait until graph captures of other threads end; return why no window can open now.

        Another profiler is not a reason: an operator's window yields to the script.
        """
        with GRAPH_CAPTURES.block_captures():
            reasons = backend.blocked_by(self._plan)
            return next((one.reason for one in reasons if one.effect == "wait"), "")

    def defers_close(self, again: Callable[[], object]) -> bool:
        """Return whether closing must wait; ``again`` is called as soon as it is possible."""
        later = functools.partial(_BOUNDARY.attempt, "stopping a profiler", again)
        reason = GRAPH_CAPTURES.defer(later) if self._current else None
        if reason:
            warn_script(f"the profiler stops when the graph capture ends: {reason}")
        return bool(reason)

    def wait_until_closable(self) -> None:
        """Wait until graph captures of other threads have ended, so that the window can close.

        Raises:
            BackendError: A capture did not end; the window stays open.
        """
        if self._current is None or GRAPH_CAPTURES.on_this_thread():
            return
        try:
            with GRAPH_CAPTURES.block_captures():
                pass
        except BackendError as error:
            text = f"the profiler cannot stop: {error}; it keeps running, stop it after that ends"
            raise BackendError(text) from error

    def continues_step(self) -> bool:
        """Return whether the step continues, because no window can open or close now."""
        reason = GRAPH_CAPTURES.under_way()
        if reason:
            warn_script(f"step() has no effect, the step continues until the next call: {reason}")
        return bool(reason)

    def _make_scratch(self) -> PrivateFolder:
        remove_stale_files(self._layout.root)
        return self._layout.make_scratch(self._layout.root)

    def close(self, metadata: dict[str, Any]) -> ClosedWindow | None:
        """Close the window and return it; None if no step was kept.

        Raises:
            BackendError: The profiler failed, and the recording is lost.
        """
        current = self.require_window("stop")
        self._current = None
        _open_now.discard(self)
        try:
            recording = current.close()
            if recording is None:
                return None
            manifest = current.manifest()
            config = {**manifest.request.config, "metadata": metadata}
            request = manifest.request.model_copy(update={"config": config})
            manifest = manifest.model_copy(update={"request": request})
            closed = ClosedWindow(recording, manifest, current.backend.trace_suffix)
            current.release()
            return closed
        finally:
            current.discard()  # after a failure; else the closed window has the recording

    def end_step(self) -> None:
        """End a step."""
        self.require_window("step").end_step(self._process.clock.now_s())

    def begin_step(self, step: int) -> None:
        """Begin a step."""
        self.require_window("step").begin_step(step)

    @property
    def is_dead(self) -> bool:
        """Whether a window is open on a thread that has ended, so that it cannot be closed."""
        return bool(self._current and self._current.has_lost_thread)

    @property
    def is_movable(self) -> bool:
        """Whether a window is open that the calling thread may close."""
        return bool(self._current and self._current.movable)

    def discard(self) -> None:
        """Drop the open window, if there is one, with its recording."""
        current, self._current = self._current, None
        _open_now.discard(self)
        if current:
            current.discard()

    def abandon(self) -> None:
        """Forget the window in a new forked child: it belongs to the parent."""
        current, self._current = self._current, None
        if current:
            self.is_of_parent = True
            current.abandon()

    def require_window(self, call: str) -> WindowDriver:
        """Return the open window.

        Raises:
            ProfileError: No window is open, or only another thread may use it.
        """
        if self._current is None:
            raise ProfileError(f"{call}(): nothing is being recorded")
        if not self._current.movable:
            name = self._current.thread.name
            raise ProfileError(
                f"{call}(): only the thread that started the profiler may call it: {name}"
            )
        return self._current


class NoWindows(ScriptWindows):
    """Replaces windows that could not be prepared: none opens."""

    def __init__(self) -> None:
        self._current = None

    def open(self, action_at: Callable[[int], ProfilerAction], step: int) -> None:
        """Refuse to open.

        Raises:
            BackendError: Always.
        """
        del action_at, step
        raise BackendError("the profiler cannot start: it could not be prepared")


def _in_script(problem: Problem) -> str:
    """Return a problem for a script, with the argument's name instead of the JSON pointer."""
    name = problem.pointer.rpartition("/")[2]
    return f"{name}: {problem.text}".rstrip(".")


def recorder_of_another_thread() -> str:
    """Return the backend that records only another thread; empty for none."""
    open_now = [windows._current for windows in _open_now.copy()]
    return next((one.backend.name for one in open_now if one and not one.movable), "")


def _discard_dead() -> None:
    """Discard windows whose threads have ended, before another one opens."""
    UNENDED.end_possible()
    for windows in [windows for windows in _open_now.copy() if windows.is_dead]:
        warn_script("a profile was never stopped, and its thread has ended; it is lost")
        windows.discard()


def _end_all() -> None:
    """Save or discard open windows at the end of the process: torch would crash otherwise."""
    if _open_now:
        GRAPH_CAPTURES.process_ends()
    for windows in _open_now.copy():
        if windows.end_at_exit and windows.is_movable:
            _BOUNDARY.attempt("ending a profile", windows.end_at_exit)
        if windows in _open_now:
            say("a profile was never stopped; it is lost")
            windows.discard()
    UNENDED.end_possible()
    for action in END_ACTIONS:
        action()


def _abandon_all() -> None:
    for windows in _open_now.copy():
        windows.abandon()
    _open_now.clear()


atexit.register(_end_all)
call_in_child(_abandon_all)

"""Windows that a script opens itself: from its arguments to a closed recording."""

from __future__ import annotations

import atexit
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.backends import all_backends
from dynprof.backends.torch.kineto_messages import keep_kineto_quiet
from dynprof.errors import BackendError, ProfileError
from dynprof.profiler.closed_window import ClosedWindow
from dynprof.profiler.output_paths import tidy
from dynprof.requests.plan import Refusal, Standing, plan
from dynprof.requests.request import Request
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.forked_child import forget_in_child
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.layout import Layout
from dynprof.runtime.process_end import call_at_forked_end
from dynprof.runtime.rank import find_rank
from dynprof.runtime.warnings_to_script import say, warn_script
from dynprof.windows.driver import UNENDED, WindowDriver
from dynprof.windows.process_context import ProcessContext
from dynprof.windows.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.backends import Backend
    from dynprof.config import ProfilerConfig
    from dynprof.errors import Problem
    from dynprof.requests.plan import Plan, Script
    from dynprof.runtime.output import PrivateFolder
    from dynprof.windows.schedule import ProfilerAction


class ScriptWindows:
    """Opens one window after the other for a script, all with the same settings.

    Args:
        config: What to record.
        script: What of it no file could say.
        marks_steps: Whether each step stands in the trace.

    Attributes:
        end_at_exit: Ends the window and saves it, where the process ends and the script never did;
            None where nobody can.
        is_parents: Whether this process was forked while the window was open.

    Raises:
        BackendError: No profiler can serve here, or none of what was asked for.
    """

    end_at_exit: Callable[[], object] | None = None
    is_parents = False

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
        """Wait for the test of the detached close, which takes seconds once for a build of torch.

        The script asked for that close, and is not training yet. The backend gives up in time.
        """
        backend = self._process.backend(self._plan.backend)
        while any(
            one.then == "rather wait" for one in backend.blocked_by(self._plan, elsewhere=True)
        ):
            time.sleep(0.05)

    def _planned(self, config: ProfilerConfig, script: Script) -> Plan:
        outcome = plan(
            config,
            Standing(0, self._process.rank.number, self._process.capabilities(), float("inf")),
            script,
        )
        if isinstance(outcome, Refusal):
            raise BackendError("; ".join(map(_in_script, outcome.problems)))
        return outcome

    @property
    def activities(self) -> tuple[str, ...]:
        """What is watched, after what is lacking here was left out."""
        return self._plan.activities

    @property
    def window(self) -> Window | None:
        """The open window."""
        return self._current.window if self._current else None

    def open(self, action_at: Callable[[int], ProfilerAction], step: int) -> None:
        """Open a window.

        Args:
            action_at: Returns the action of its n-th step, from 0; asked once for each.
            step: The script's number of the step that begins.

        Raises:
            BackendError: It cannot be opened now, with the reason.
        """
        backend = self._process.backend(self._plan.backend)
        if blocked_by := GRAPH_CAPTURES.mine() or self._blocked_by(backend):
            raise BackendError(f"the profiler cannot start: {blocked_by}")
        self._process.learn_rank()
        self._windows += 1
        wall_s = self._process.clock.wall_s()
        request = Request(self._windows, self._plan, wall_s, "", self._plan.remarks)
        window = Window(0, None, step, action_at=action_at, marks_steps=self._marks_steps)
        current = WindowDriver(self._process, _BOUNDARY, request, window, step)
        _discard_dead()
        current.open(self._make_scratch)
        self._current, self.is_parents = current, False
        _open_now.add(self)
        call_at_forked_end(_end_all)

    def _blocked_by(self, backend: Backend) -> str:
        """Return why it cannot open now, once captures of other threads have ended.

        Another profiler is none of the reasons: the backend has a window give way to the script.
        """
        with GRAPH_CAPTURES.held_back():
            reasons = backend.blocked_by(self._plan)
            return next((one.by for one in reasons if one.then == "wait"), "")

    def puts_off(self, again: Callable[[], object]) -> bool:
        """Return whether it cannot be closed now; ``again`` is called as soon as it can."""
        later = functools.partial(_BOUNDARY.attempt, "stopping a profiler", again)
        reason = GRAPH_CAPTURES.put_off(later) if self._current else None
        if reason:
            warn_script(f"the profiler stops when the capture has ended: {reason}")
        return bool(reason)

    def insist_may_close(self) -> None:
        """Wait until the captures of other threads have ended, for the window can then be closed.

        Raises:
            BackendError: One did not end; the window goes on.
        """
        if self._current is None or GRAPH_CAPTURES.mine():
            return
        try:
            with GRAPH_CAPTURES.held_back():
                pass
        except BackendError as error:
            text = f"the profiler cannot stop: {error}; it goes on, stop it when that has ended"
            raise BackendError(text) from error

    def joins_step(self) -> bool:
        """Return whether a step goes on, for nothing can be opened or closed after it."""
        reason = GRAPH_CAPTURES.under_way()
        if reason:
            warn_script(f"step() has no effect, the step goes on until the next: {reason}")
        return bool(reason)

    def _make_scratch(self) -> PrivateFolder:
        tidy(self._layout.root)
        return self._layout.make_scratch(self._layout.root)

    def close(self, metadata: dict[str, Any]) -> ClosedWindow | None:
        """Close the window; return what it recorded, None where nothing was to be kept.

        Raises:
            BackendError: The profiler failed; what it recorded is lost.
        """
        current = self.insist("stop")
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
            current.discard()  # what failed; the closed window has what did not

    def end_step(self) -> None:
        """End a step."""
        self.insist("step").end_step(self._process.clock.now_s())

    def begin_step(self, step: int) -> None:
        """Begin a step."""
        self.insist("step").begin_step(step)

    @property
    def is_dead(self) -> bool:
        """Whether a window is open on a thread that has ended: nobody can close it any more."""
        return bool(self._current and self._current.has_lost_thread)

    @property
    def is_movable(self) -> bool:
        """Whether a window is open that the calling thread may close."""
        return bool(self._current and self._current.movable)

    def discard(self) -> None:
        """Drop the open window, if there is one, and what it recorded."""
        current, self._current = self._current, None
        _open_now.discard(self)
        if current:
            current.discard()

    def abandon(self) -> None:
        """Forget the window in a child that was just forked: it is its parent's."""
        current, self._current = self._current, None
        if current:
            self.is_parents = True
            current.abandon()

    def insist(self, call: str) -> WindowDriver:
        """Return the open window.

        Raises:
            ProfileError: There is none, or only another thread may touch it.
        """
        if self._current is None:
            raise ProfileError(f"{call}(): nothing is being recorded")
        if not self._current.movable:
            name = self._current.thread.name
            raise ProfileError(f"{call}(): only the thread that started the profiler may: {name}")
        return self._current


class NoWindows(ScriptWindows):
    """Takes the place of windows that could not be prepared: none opens."""

    def __init__(self) -> None:
        self._current = None

    def open(self, action_at: Callable[[int], ProfilerAction], step: int) -> None:
        """Refuse to.

        Raises:
            BackendError: Always.
        """
        del action_at, step
        raise BackendError("the profiler cannot start: it could not be prepared")


def _in_script(problem: Problem) -> str:
    """Return a problem in words for a script, which knows arguments and no JSON pointers."""
    name = problem.pointer.rpartition("/")[2]
    return f"{name}: {problem.text}".rstrip(".")


AFTERWARDS: list[Callable[[], object]] = []
"""What is to be done at the end of the process when no window is open any more."""
_BOUNDARY = ErrorBoundary(StderrNotes())
_open_now: set[ScriptWindows] = set()
"""Those whose window is open; kept, for nobody else may hold them any more.

Gone through as a copy: other threads, and the end of an object anywhere, begin and end them."""


def recorder_of_another_thread() -> str:
    """Return which backend records a thread alone that is not the calling one; empty for none."""
    open_now = [windows._current for windows in _open_now.copy()]
    return next((one.backend.name for one in open_now if one and not one.movable), "")


def _discard_dead() -> None:
    """Discard windows whose threads have ended, before another one opens."""
    UNENDED.end_possible()
    for windows in [windows for windows in _open_now.copy() if windows.is_dead]:
        warn_script("a profile was never stopped, and its thread has ended; it is lost")
        windows.discard()


def _end_all() -> None:
    """Save what is open at the end of the process, or discard it: torch would crash over it."""
    if _open_now:
        GRAPH_CAPTURES.process_ends()
    for windows in _open_now.copy():
        if windows.end_at_exit and windows.is_movable:
            _BOUNDARY.attempt("ending a profile", windows.end_at_exit)
        if windows in _open_now:
            say("a profile was never stopped; it is lost")
            windows.discard()
    UNENDED.end_possible()
    for action in AFTERWARDS:
        action()


def _abandon_all() -> None:
    for windows in _open_now.copy():
        windows.abandon()
    _open_now.clear()


atexit.register(_end_all)
forget_in_child(_abandon_all)

"""The owner of libkineto's one session: dynprof's window, or the script's own profiler.

libkineto has one session per process and no call that tells its owner. Preparing a profiler takes
the session from its owner, on any thread. Stopping the first profiler then crashes the process.
So dynprof wraps the functions by which ``torch.autograd`` reaches libkineto, to notice when the
script uses them. The script always has priority.

At each moment the session is free or has one owner:

- a window, from ``prepare`` until ``stop`` or ``hand_over``;
- the thread that collects the window's events, until ``collected``;
- the script.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.closing import COLLECTOR, records_all_threads
from dynprof.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.profiler import profile

    from dynprof.backends.torch.detached_close import DetachedState
    from dynprof.requests.capabilities import Capabilities

OCCUPIED = "another torch.profiler is active in this process; stop it first"
COLLECTING_WAIT_S = 120.0
"""Longest wait at process exit for events that are being collected. Without it C++ would destroy
the profiler's state while the thread collects them."""
GIVE_WAY_S = 5.0
"""How long the script's profiler waits for the next step of a window on another thread."""
_PAUSE_S = 0.001
"""Seconds between two checks of a profiler that waits."""
LOG_LEVEL = "KINETO_LOG_LEVEL"
SILENT = "6"
"""A log level above Kineto's highest, 5, at which torch 2.13 writes lines when a profiler begins
and ends; errors have level 4."""
_DEVICE_FILES = ("nvidia[0-9c]*", "kfd", "dri/render*", "davinci*", "dxg", "accel*")
"""Files below ``/dev`` that exist where a device's driver is loaded."""


class ScriptSession:
    """The same session, for a recording that the script itself requested.

    An operator's window gives way to it, as to any profiler of the script.
    """

    close_for_other: Callable[[], None] | None = None
    lost = False

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def prepare(self, profiler: profile, owner: object) -> None:  # noqa: ARG002
        """Take the session; waits while another recording's events are collected."""
        self._thread = threading.current_thread()
        profiler._prepare_trace()

    def start(self, start_trace: Callable[[], None]) -> None:
        """Start recording."""
        start_trace()

    def stop(self, stop_trace: Callable[[], None]) -> None:
        """Stop recording; frees the session."""
        stop_trace()

    def close(self, owner: object = None) -> None:  # noqa: ARG002
        """Note that the recording has ended."""
        KINETO.release(self._thread)

    def hand_over(self, events: object) -> None:
        """Hand the session to a thread that collects its events."""
        KINETO.release(self._thread)
        KINETO.hand_over(events)


class ActiveCollections:
    """The owners that are collecting events; true while there are any."""

    def __init__(self) -> None:
        self._begun: set[object] = set()
        self._lock = threading.RLock()  # a signal handler may take it as well

    def __bool__(self) -> bool:
        return bool(self._begun)

    def begin(self, owner: object) -> None:
        """Add an owner; adding it again, after a failure, changes nothing."""
        self._begun.add(owner)

    def begin_exclusive(self, owner: object, taken: Callable[[], bool]) -> bool:
        """Add an owner if there is no other; return whether it was added.

        Args:
            owner: The owner to add.
            taken: Returns whether the session has another owner. Called once other threads can see
                this one: of two concurrent calls, at least one sees the other.
        """
        with self._lock:
            if not self._begun:
                self._begun.add(owner)
                if len(self._begun) == 1 and not taken():
                    return True
                self._begun.discard(owner)
            return False

    def end(self, owner: object) -> None:
        """Remove an owner."""
        self._begun.discard(owner)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until there is no owner."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._begun and (deadline_s is None or time.monotonic() < deadline_s):
            time.sleep(_PAUSE_S)


def collect(
    action: Callable[[], None], collected: Callable[[DetachedState], None], taken: DetachedState
) -> None:
    """Collect a detached state; always call ``collected`` afterwards, also on an error."""
    try:
        action()
    finally:
        collected(taken)


class _ThreadFlags(threading.local):
    in_own_call = starting = False


class KinetoSession:
    """The one session of this process.

    Attributes:
        lost: Whether the script took the session from the open window.
        prepare_count: The number of times that a profiler took the session.
        close_for_other: Closes the open window if it can, before the script's profiler begins.
    """

    def __init__(self) -> None:
        self.lost = False
        self.prepare_count = 0
        self.close_for_other: Callable[[], None] | None = None
        self._script_threads: set[threading.Thread] = set()
        self._abandoned: list[tuple[DetachedState, profile]] = []
        self._unstopped: dict[threading.Thread, Callable[[], bool]] = {}
        self._watching = False
        self.reset()

    def reset(self) -> None:
        """Mark the session as free."""
        self._flags = _ThreadFlags()
        self._abandoned.clear()
        self._unstopped.clear()
        self._owner: object = None
        self._open = self._started = False
        self._closed, self._collecting = threading.Event(), ActiveCollections()
        self._closed.set()

    def reset_in_child(self) -> None:
        """Reset in a forked child; a profiler still on, on its thread, keeps the session."""
        self.reset()
        self._release_unless_enabled()

    def watch(self) -> None:
        """Wrap torch's functions, once."""
        if self._watching:
            return
        self._watching = True
        import torch.autograd.profiler as module
        import torch.autograd.profiler_legacy as legacy

        if getattr(module, "_is_profiler_enabled", False):  # began before the wrapping
            self._script_threads.add(threading.main_thread())
        for place in (module, sys.modules["torch.autograd"], legacy):
            for name, wrap in (
                ("_prepare_profiler", self._wrap_prepare),
                ("_enable_profiler", self._wrap_enable),
                ("_enable_profiler_legacy", self._wrap_enable),
                ("_disable_profiler", self._wrap_disable),
                ("_disable_profiler_legacy", self._wrap_disable),
            ):
                if function := getattr(place, name, None):
                    setattr(place, name, wrap(function))

    @property
    def script_is_profiling(self) -> bool:
        """Whether the script's own profiler is prepared or running."""
        if any(thread.is_alive() for thread in tuple(self._script_threads)):
            return True
        is_own = self._started or self.collecting
        return bool(not is_own and records_all_threads())  # the script's thread may have ended

    @property
    def has_window(self) -> bool:
        """Whether an operator's window is open and still has the session."""
        return self._open and not self.lost

    @property
    def collecting(self) -> bool:
        """Whether a thread collects the events of the last recording."""
        return bool(self._collecting)

    def prepare(self, profiler: profile, owner: object) -> None:
        """Take the session for a recording.

        Raises:
            BackendError: The script's own profiler has just begun, on another thread.
        """
        done = False
        try:
            self._owner, self.lost, self._open, self._started = owner, False, True, False
            self._closed.clear()
            self.wait()  # another thread may be using it to end a recording that had lost it
            if self.script_is_profiling:  # checked after we are visible: one of two sees the other
                raise BackendError(OCCUPIED)
            self._call(profiler._prepare_trace)
            done = True
        finally:
            if not done:
                self.close()

    def start(self, start_trace: Callable[[], None]) -> None:
        """Start recording, with the prepared session."""
        self._started = True
        self._call(start_trace)

    def stop(self, stop_trace: Callable[[], None]) -> None:
        """Stop recording and free the session."""
        try:
            self._call(stop_trace)
        finally:
            self.close()

    def close(self, owner: object = None) -> None:
        """Note that the window has ended; frees the session.

        Args:
            owner: The owner that frees it; nothing changes where another recording took it since.
        """
        if owner in (None, self._owner):
            self._open, self.close_for_other, self._owner = False, None, None
            self._started = False
            self._closed.set()
        self._free_abandoned()

    def hand_over(self, events: object) -> None:
        """Hand the session to a thread that collects its events."""
        self._collecting.begin(events)
        self.close()

    def discard_uncollected(self, taken: DetachedState) -> None:
        """Have torch destroy its recording, which needs no memory, unlike collecting it.

        torch holds its own reference and releases it when it next prepares a recording. Without
        that the process crashes at exit: calls are destroyed under the GIL.
        """
        from torch.autograd.profiler import profile

        taken.reset()
        self._call(profile(use_kineto=True)._prepare_trace)

    def collected(self, events: object) -> None:
        """Free the session; the collecting thread calls this."""
        self._collecting.end(events)
        self._free_abandoned()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait while a thread collects the events of the last recording."""
        self._collecting.wait(timeout_s)

    def release(self, thread: threading.Thread | None = None) -> None:
        """Note that the script's profiler on a thread has ended; the default is this thread."""
        self._script_threads.discard(thread or threading.current_thread())

    def _call(self, function: Callable[[], None]) -> None:
        self._flags.in_own_call = True
        try:
            function()
        finally:
            self._flags.in_own_call = False

    def _wrap_prepare(self, function: Callable[..., Any]) -> Any:
        def count(*args: Any, **kwargs: Any) -> Any:
            self.prepare_count += 1
            return function(*args, **kwargs)

        return self._wrap_enable(functools.wraps(function)(count))

    def _wrap_enable(self, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._flags.in_own_call:
                return function(*args, **kwargs)
            done, thread = False, threading.current_thread()
            self._flags.starting = thread not in self._script_threads
            self._script_threads.add(thread)
            try:
                self.end_open_window()
                if again := self._unstopped.get(thread):
                    again()
                self._flags.starting = False
                result = function(*args, **kwargs)
                done = True
            finally:
                self._flags.starting = False
                if not done:
                    self._release_unless_enabled()
            return result

        return call

    def end_open_window(self) -> None:
        """Close an open window and wait for its events; two profilers at once would crash."""
        deadline_s = time.monotonic() + (0.0 if self.lost else GIVE_WAY_S)  # waits only once
        while self._open:
            if self.close_for_other:
                self.close_for_other()
            if time.monotonic() >= deadline_s:
                break
            self._closed.wait(0.02)
        self.lost = self.lost or self._open
        self.wait()

    def _release_unless_enabled(self) -> None:
        """Release this thread after a failed start, unless another profiler is on here."""
        from torch.autograd import _profiler_enabled

        if not _profiler_enabled():
            self.release()

    def _wrap_disable(self, function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            of_all_threads = records_all_threads() is not False
            try:
                return function(*args, **kwargs)
            finally:
                if not self._flags.in_own_call:
                    self._release_script_thread(of_all_threads)

        return call

    def _release_script_thread(self, of_all_threads: bool) -> None:
        thread = threading.current_thread()
        if thread in self._script_threads:
            self._script_threads.discard(thread)
        elif of_all_threads:  # any thread may stop it
            self._script_threads.clear()
        self._free_abandoned()

    def free_later(self, taken: DetachedState, profiler: profile) -> None:
        """Free the events of a recording that lost the session, as soon as that is safe.

        Args:
            taken: The recording's detached state.
            profiler: Prepares the session that torch needs to end a recording.
        """
        self._abandoned.append((taken, profiler))
        self._free_abandoned()

    def try_end(
        self, profiler: profile, stop_trace: Callable[[], None], owner: object = None
    ) -> bool:
        """Have torch end a recording that lost the session, on the recording's own thread.

        Returns:
            Whether it has ended. Ending takes the session. Where another owner has the session,
            the recording stays on, unread. It ends at the next call of this, or before the script
            starts a profiler on this thread.
        """
        from torch.autograd import _profiler_enabled

        thread, taken = threading.current_thread(), functools.partial(self._is_taken, owner)
        self._unstopped.pop(thread, None)
        if _profiler_enabled():
            if not self._collecting.begin_exclusive(profiler, taken):
                self._unstopped[thread] = functools.partial(
                    self.try_end, profiler, stop_trace, owner
                )
                return False
            try:
                self._call(profiler._prepare_trace)
                self._call(stop_trace)
            finally:
                self.collected(profiler)
        return True

    def is_taken_by_other(self, owner: object) -> bool:
        """Return whether another owner has the session; a thread just starting does not count."""
        return self.collecting or self._is_taken(owner)

    def _is_taken(self, owner: object = None) -> bool:
        asking = threading.current_thread() if self._flags.starting else None
        claimed = any(
            thread.is_alive() and thread is not asking for thread in tuple(self._script_threads)
        )
        return claimed or (self._open and self._owner is not owner) or bool(records_all_threads())

    def _free_abandoned(self) -> None:
        can_free = self._abandoned and not self._flags.starting
        if can_free and self._collecting.begin_exclusive(self, self._is_taken):
            COLLECTOR.begin(self._free_all_abandoned)

    def _free_all_abandoned(self) -> None:
        try:
            while self._abandoned:
                taken, profiler = self._abandoned.pop()
                self._call(profiler._prepare_trace)
                taken.collect()
                taken.drop()
        finally:
            self.collected(self)


KINETO = KinetoSession()
"""The process's session."""

atexit.register(KINETO.wait, COLLECTING_WAIT_S)


def keep_kineto_quiet_without_devices() -> None:
    """Set Kineto's level before a script imports torch, where this machine has no device."""
    if not any(found for name in _DEVICE_FILES for found in Path("/dev").glob(name)):
        os.environ.setdefault(LOG_LEVEL, SILENT)


def keep_kineto_quiet(capable: Capabilities) -> None:
    """Set Kineto's level, unless the environment has one; Kineto reads it at its first profiler.

    With a device nothing is set: Kineto's errors, which say why the driver gives no kernels, would
    be hidden too.

    Args:
        capable: The capabilities of the backend that will record here.
    """
    if capable.backend == "torch" and capable.activities == ("CPU",):
        os.environ.setdefault(LOG_LEVEL, SILENT)

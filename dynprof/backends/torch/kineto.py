"""Who holds libkineto's one session: dynprof's window, or a profiler of the script's own.

libkineto has one session a process and no way to ask for it. Whoever prepares a profiler takes
the session from whoever had it, on any thread, and then stopping the first one crashes the
process. So the functions by which ``torch.autograd`` reaches libkineto are wrapped, to notice
when the script uses them; the script always goes first.

At each moment the session has one owner: nobody, a window (``prepare`` until ``stop`` or
``hand_over``), the thread that collects the window's events (until ``collected``), or the script.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.closing import COLLECTOR, records_all_threads
from dynprof.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.autograd.profiler import profile

    from dynprof.backends.torch.detached_close import DetachedState


class ScriptSession:
    """The same session, for a recording that the script asked for itself.

    A window of the operator's gives way to it, as to any profiler of the script's own.
    """

    give_way: Callable[[], None] | None = None
    lost = False

    def __init__(self) -> None:
        self._thread = threading.current_thread()

    def prepare(self, profiler: profile, owner: object) -> None:  # noqa: ARG002
        """Take the session; waits while another recording's events are collected."""
        self._thread = threading.current_thread()
        profiler._prepare_trace()

    def start(self, start_trace: Callable[[], None]) -> None:
        """Begin to record."""
        start_trace()

    def stop(self, stop_trace: Callable[[], None]) -> None:
        """Give the session back."""
        stop_trace()

    def close(self, owner: object = None) -> None:  # noqa: ARG002
        """Note that the recording has ended."""
        KINETO.release(self._thread)

    def hand_over(self, events: object) -> None:
        """Leave the session to a thread that collects its events."""
        KINETO.release(self._thread)
        KINETO.hand_over(events)


_PAUSE_S = 0.001


class ActiveCollections:
    """The turns that were begun and have not ended, by who has them; true while there are any."""

    def __init__(self) -> None:
        self._begun: set[object] = set()
        self._lock = threading.RLock()  # a handler may look as well

    def __bool__(self) -> bool:
        return bool(self._begun)

    def begin(self, owner: object) -> None:
        """Begin a turn; to begin it again, after something failed, changes nothing."""
        self._begun.add(owner)

    def begin_exclusive(self, owner: object, taken: Callable[[], bool]) -> bool:
        """Begin a turn if nobody else has one; return whether that was so.

        Args:
            owner: Who has it then.
            taken: Says whether somebody has the session otherwise. Asked once all can see that
                the turn has begun: of two that come at once, one sees the other.
        """
        with self._lock:
            if not self._begun:
                self._begun.add(owner)
                if len(self._begun) == 1 and not taken():
                    return True
                self._begun.discard(owner)
            return False

    def end(self, owner: object) -> None:
        """End a turn."""
        self._begun.discard(owner)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all turns have ended."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._begun and (deadline_s is None or time.monotonic() < deadline_s):
            time.sleep(_PAUSE_S)


def collect(
    action: Callable[[], None], collected: Callable[[DetachedState], None], taken: DetachedState
) -> None:
    """Collect what was taken, and tell that it has been, whatever becomes of it."""
    try:
        action()
    finally:
        collected(taken)


OCCUPIED = "another torch.profiler is active in this process; stop it first"
COLLECTING_WAIT_S = 120.0
"""Longest wait of the end of the process for events that are being collected: C++ would destroy the
profiler's state under the thread that collects them."""
GIVE_WAY_S = 5.0
"""For so long the script's profiler waits for the next step of a window on another thread."""


class _ThreadFlags(threading.local):
    in_own_call = starting = False


class KinetoSession:
    """The one session of this process.

    Attributes:
        lost: Whether the script took the session from the window that is open.
        prepare_count: How often somebody took the session.
        give_way: Closes the open window if it can, before the script's profiler begins.
    """

    def __init__(self) -> None:
        self.lost = False
        self.prepare_count = 0
        self.give_way: Callable[[], None] | None = None
        self._script_threads: set[threading.Thread] = set()
        self._abandoned: list[tuple[DetachedState, profile]] = []
        self._unstopped: dict[threading.Thread, Callable[[], bool]] = {}
        self._watching = False
        self.reset()

    def reset(self) -> None:
        """Note that nobody holds the session."""
        self._flags = _ThreadFlags()
        self._abandoned.clear()
        self._unstopped.clear()
        self._owner: object = None
        self._open = self._started = False
        self._closed, self._collecting = threading.Event(), ActiveCollections()
        self._closed.set()

    def reset_in_child(self) -> None:
        """Begin anew in a forked child, but for a profiler that is still on, on its thread."""
        self.reset()
        self._release_unless_enabled()

    def watch(self) -> None:
        """Wrap torch's functions, once."""
        if self._watching:
            return
        self._watching = True
        import torch.autograd.profiler as module
        import torch.autograd.profiler_legacy as legacy

        if getattr(module, "_is_profiler_enabled", False):  # begun before anybody looked
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
        """Whether a profiler of the script's own is prepared or running."""
        if any(thread.is_alive() for thread in tuple(self._script_threads)):
            return True
        ours = self._started or self.collecting
        return bool(not ours and records_all_threads())  # its thread may have ended

    @property
    def has_window(self) -> bool:
        """Whether a window of the operator's is open, and was not disturbed."""
        return self._open and not self.lost

    @property
    def collecting(self) -> bool:
        """Whether a thread collects the events of the last recording."""
        return bool(self._collecting)

    def prepare(self, profiler: profile, owner: object) -> None:
        """Take the session for a recording.

        Raises:
            BackendError: A profiler of the script's own has just begun, on another thread.
        """
        done = False
        try:
            self._owner, self.lost, self._open, self._started = owner, False, True, False
            self._closed.clear()
            self.wait()  # somebody may just have taken it, to end a recording that had lost it
            if self.script_is_profiling:  # looked for once it can see us: one of two sees the other
                raise BackendError(OCCUPIED)
            self._call(profiler._prepare_trace)
            done = True
        finally:
            if not done:
                self.close()

    def start(self, start_trace: Callable[[], None]) -> None:
        """Begin to record, with the session that was taken."""
        self._started = True
        self._call(start_trace)

    def stop(self, stop_trace: Callable[[], None]) -> None:
        """Give the session back."""
        try:
            self._call(stop_trace)
        finally:
            self.close()

    def close(self, owner: object = None) -> None:
        """Note that the window has ended, and that nobody holds the session.

        Args:
            owner: Who gives it back; nothing changes where another recording took it since.
        """
        if owner in (None, self._owner):
            self._open, self.give_way, self._owner = False, None, None
            self._started = False
            self._closed.set()
        self._free_abandoned()

    def hand_over(self, events: object) -> None:
        """Leave the session to a thread that collects its events."""
        self._collecting.begin(events)
        self.close()

    def discard_uncollected(self, taken: DetachedState) -> None:
        """Have torch destroy what it has recorded, which takes no memory as collecting it does.

        torch holds a reference of its own, and releases it when it prepares to record again.
        Without that the process crashes at its end: calls are destroyed under the GIL.
        """
        from torch.autograd.profiler import profile

        taken.forget()
        self._call(profile(use_kineto=True)._prepare_trace)

    def collected(self, events: object) -> None:
        """Give the session back; called by that thread."""
        self._collecting.end(events)
        self._free_abandoned()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait while a thread collects the events of the last recording."""
        self._collecting.wait(timeout_s)

    def release(self, thread: threading.Thread | None = None) -> None:
        """Note that what a thread, or this one, began as a profiler of the script's has ended."""
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
        """Have an open window closed, and its events collected: two at once would crash."""
        deadline_s = time.monotonic() + (0.0 if self.lost else GIVE_WAY_S)  # waited for once
        while self._open:
            if self.give_way:
                self.give_way()
            if time.monotonic() >= deadline_s:
                break
            self._closed.wait(0.02)
        self.lost = self.lost or self._open
        self.wait()

    def _release_unless_enabled(self) -> None:
        """Take back the claim of a profiler that failed to begin, unless another one is on here."""
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
        elif of_all_threads:  # any of them may stop it
            self._script_threads.clear()
        self._free_abandoned()

    def free_later(self, taken: DetachedState, profiler: profile) -> None:
        """Let go of what a recording that lost the session has, as soon as that does no harm.

        Args:
            taken: The state, off its thread.
            profiler: Prepares the session that torch needs to end a recording.
        """
        self._abandoned.append((taken, profiler))
        self._free_abandoned()

    def try_end(
        self, profiler: profile, stop_trace: Callable[[], None], owner: object = None
    ) -> bool:
        """Do as :meth:`free_later` where torch has to end it, on the thread that it lies on.

        Returns:
            Whether it has ended. That takes a session: where others than the owner have it, it goes
            on, unread, until this is tried again, or the script wants a profiler on this thread.
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
        """Return whether somebody else has the session; who only asks for it here has not."""
        return self.collecting or self._is_taken(owner)

    def _is_taken(self, owner: object = None) -> bool:
        asking = threading.current_thread() if self._flags.starting else None
        claimed = any(
            thread.is_alive() and thread is not asking for thread in tuple(self._script_threads)
        )
        return claimed or (self._open and self._owner is not owner) or bool(records_all_threads())

    def _free_abandoned(self) -> None:
        wanted = self._abandoned and not self._flags.starting
        if wanted and self._collecting.begin_exclusive(self, self._is_taken):
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
"""The process has one."""

atexit.register(KINETO.wait, COLLECTING_WAIT_S)

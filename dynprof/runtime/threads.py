"""Threads of dynprof, which are daemons and block signals, and the switch interval of all threads.

The system gives a signal to any thread that does not block it. A job may block a signal after
``init()`` and wait for it in a thread of its own. The signal would then reach dynprof's thread and
end the job.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.runtime.process_hooks import call_in_child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SYNCHRONOUS_SIGNALS = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}
"""Signals that a thread causes itself; blocked, they end the process without faulthandler."""
FAST_SWITCH_S = 0.0002
"""Switch interval in seconds while dynprof saves; Python's default is 0.005."""
_PER_THREAD_CLOCK = 6
"""Linux makes a thread's CPU clock from its inverted id and this number."""
_PR_SET_NAME = 15
"""Option of ``prctl``: the name of the calling thread, up to 15 bytes."""
_lock = threading.Lock()
_inside = 0
_before = 0.005


class _Thread(threading.Thread):
    """A thread of dynprof's own.

    Windows of plain Python leave out dynprof's files, but not ``Thread.run``, which it replaces.
    """

    def __init__(self, run: Callable[..., object], name: str, args: tuple[object, ...]) -> None:
        super().__init__(name=name, daemon=True)
        self._work = run, args

    def run(self) -> None:
        """Run the function."""
        function, args = self._work
        del self._work  # as a thread that has ended keeps no arguments
        try:
            _run_without_signals(function, *args)
        finally:
            sys.setprofile(None)  # what Python does at the end of a thread is no call of the job


def threads_of_others() -> list[threading.Thread]:
    """Return the Python threads, other than this one, that dynprof and watchdog did not start."""
    here = threading.current_thread()
    return [
        thread
        for thread in threading.enumerate()
        if thread is not here
        and not isinstance(thread, _Thread)
        and not type(thread).__module__.startswith("watchdog.")
    ]


def is_own_thread() -> bool:
    """Return whether the calling thread is dynprof's own, which no script waits for."""
    return isinstance(threading.current_thread(), _Thread)


def own_thread(run: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Return a thread, not yet started, that runs ``run`` and receives no signals.

    Its child processes and threads receive none either, until they unblock them.
    """
    return _Thread(run, name, args)


def _run_without_signals(run: Callable[..., object], *args: object) -> None:
    if hasattr(signal, "pthread_sigmask"):
        kept = {getattr(signal, name, None) for name in _SYNCHRONOUS_SIGNALS}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - kept)
    run(*args)


@contextlib.contextmanager
def fast_switching() -> Iterator[None]:
    """Make the interpreter switch threads sooner while the body runs.

    A thread that makes system calls releases the GIL at each, and waits up to 5 ms to get it back.
    It waits longer if the training thread releases and takes the GIL more often than that. Next to
    a plain Python loop, reading a small file took 3 s and saving its capture 23 s.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside, _before
    with _lock:
        if not _inside:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, FAST_SWITCH_S))
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside:
            sys.setswitchinterval(_before)


def _reset_in_child() -> None:
    """Restore the interval in a forked child, where no thread is inside any more."""
    global _lock, _inside
    if _inside:
        sys.setswitchinterval(_before)
    _lock, _inside = threading.Lock(), 0


call_in_child(_reset_in_child)


def clock_of(native_id: int) -> int:
    """Return the CPU clock of a thread of this process.

    ``time.pthread_getcpuclockid`` crashes if the thread has ended. Reading this clock then fails.
    """
    return (~native_id << 3) | _PER_THREAD_CLOCK


def native_id_of(thread: threading.Thread) -> int:
    """Return the system's number of a thread; in a forked child, Python's is that of the parent."""
    return os.getpid() if thread is threading.main_thread() else thread.native_id or 0


class ThreadProgress:
    """Looks at whether a thread runs Python code.

    A stack is seen where a thread gives the GIL away, so an evaluation may always be seen where it
    waits for its device, as a hang is. A pending call of Python's C API runs once the main thread
    runs Python code. It is ``sem_post``, so no code of dynprof's runs on that thread. Other threads
    have no such call. One that runs Python code gives its CPU away as it waits for the GIL, which
    each look takes; one that waits in C stays asleep, or spins.
    """

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(None)
        self._posted = ctypes.create_string_buffer(64)  # a sem_t has 32 bytes
        self._library.sem_init(self._posted, 0, 0)
        self._is_pending = False
        self._sleeps: int | None = None

    def look(self, thread: threading.Thread) -> tuple[bool, float]:
        """Return whether it has run Python code since the last look, and its CPU time in s.

        The first look does not know. The time is 0 if the thread has ended.
        """
        is_main = thread is threading.main_thread()
        has_run = self._main_has_run() if is_main else self._has_slept(thread)
        try:
            return has_run, time.clock_gettime(clock_of(native_id_of(thread)))
        except OSError:
            return has_run, 0.0

    def _main_has_run(self) -> bool:
        has_run = self._is_pending and self._library.sem_trywait(self._posted) == 0
        if has_run or not self._is_pending:
            post = ctypes.cast(self._library.sem_post, ctypes.c_void_p)
            posted = ctypes.cast(self._posted, ctypes.c_void_p)
            self._is_pending = ctypes.pythonapi.Py_AddPendingCall(post, posted) == 0
            _posts.append(self._posted)
        return has_run

    def _has_slept(self, thread: threading.Thread) -> bool:
        before, self._sleeps = self._sleeps, _sleeps_of(thread)
        return before is not None and self._sleeps is not None and self._sleeps > before


def _sleeps_of(thread: threading.Thread) -> int | None:
    """Return how often a thread has given its CPU away; None if it has ended."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/self/task/{native_id_of(thread)}/status").read_text()
        return int(text.rpartition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return None


def show_name() -> None:
    """Show the calling thread's name to other processes; Python before 3.14 does not."""
    with contextlib.suppress(AttributeError):  # the system is not Linux
        name = threading.current_thread().name.encode()
        ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)


def state_of_thread(pid: int, name: str) -> str:
    """Return the state of a thread of a process, such as D if it waits for a disk; else empty.

    Args:
        pid: The process.
        name: The name of the thread, which has called :func:`show_name`.
    """
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                _, found, rest = (thread / "stat").read_text().partition(f" ({name}) ")
                if found:
                    return rest[0]
    return ""


_posts: deque[ctypes.Array[ctypes.c_char]] = deque(maxlen=64)
"""Semaphores that a pending call may still post; Python keeps 32 calls."""

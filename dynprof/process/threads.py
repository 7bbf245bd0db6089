"""Threads of dynprof's own: daemons that leave the job's signals to the job.

The system gives a signal to any thread that does not block it. A job that blocks one after
``init()``, to wait for it in a thread of its own, would be ended by ours.
"""

from __future__ import annotations

import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_THE_THREAD = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}
"""What a thread brings about itself; blocked, it would end the process without faulthandler."""


class _Thread(threading.Thread):
    """A thread of dynprof's own."""


def threads_of_others() -> list[threading.Thread]:
    """Return the threads of Python that neither dynprof nor watchdog has started, but this one."""
    here = threading.current_thread()
    return [
        thread
        for thread in threading.enumerate()
        if thread is not here
        and not isinstance(thread, _Thread)
        and not type(thread).__module__.startswith("watchdog.")
    ]


def is_own_thread() -> bool:
    """Return whether the calling thread is one of dynprof's own, for which no script waits."""
    return isinstance(threading.current_thread(), _Thread)


def own_thread(run: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Return a thread, not yet started, that runs ``run`` and receives no signals.

    Processes and threads that it starts receive none either, until they say otherwise.
    """
    return _Thread(target=_run_apart, args=(run, *args), name=name, daemon=True)


def _run_apart(run: Callable[..., object], *args: object) -> None:
    if hasattr(signal, "pthread_sigmask"):
        kept = {getattr(signal, name, None) for name in _OF_THE_THREAD}
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - kept)
    run(*args)

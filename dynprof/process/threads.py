"""Threads of dynprof's own: daemons that leave the job's signals to the job.

The system gives a signal to any thread that does not block it. A job that blocks one after
``init()``, to wait for it in a thread of its own, would be ended by ours.
"""

from __future__ import annotations

import signal
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_OF_THE_THREAD = {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS"}
"""What a thread brings about itself; blocked, it would end the process without faulthandler."""


STACK = 1 << 20
"""What ours needs at most, and more: the job may have asked for less for threads of its own."""
_AMPLE = 64 << 20
"""What a thread of the job's gets that starts as it is looked what it asked for: not too little."""

LOOKS, LOOK_S = 50, 0.1
"""So often is it looked whether a thread has begun, each time for so long: without memory it dies
before that, and nobody is told. A process that is stopped meanwhile loses one look, not all."""
AGAIN_S = 1.0

_LIMBO: dict[threading.Thread, threading.Thread] = getattr(threading, "_limbo", {})
"""Python's threads that are to begin: each takes itself out."""

_here = threading.local()


class _Thread(threading.Thread):
    """A daemon whose stack is large enough for dynprof, whatever the job wants for its own.

    Args:
        run: What it runs.
        name: Its name.
    """

    def __init__(self, run: Callable[[], object], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._asked = run
        self._action: list[Callable[[], object]] = []
        """Taken out by whoever comes first: the thread, or who waits no more."""

    def run(self) -> None:
        """Do it, if somebody still waits for that."""
        for run in self._take():
            _run_apart(run)

    def _take(self) -> list[Callable[[], object]]:
        taken, self._action = self._action, []
        return taken

    def start(self) -> None:
        """Start it.

        Raises:
            RuntimeError: It cannot be, or has not begun after :data:`LOOKS`.
        """
        self._action = [self._asked]
        began = self._started  # type: ignore[attr-defined]
        began.wait = partial(_is_told, type(began).wait, began)  # which has no limit
        self._start()
        if not began.is_set():
            self._take()
            _LIMBO.pop(self, None)
            raise RuntimeError("a thread has not begun, for want of memory as a rule")

    def _bootstrap(self) -> None:
        _LIMBO.setdefault(self, self)  # of one that begins after nobody waits for it any more
        super()._bootstrap()  # type: ignore[misc]

    def _start(self) -> None:
        before = threading.stack_size(_AMPLE)  # tells what was asked for only as it is changed
        is_small = 0 < before < STACK
        threading.stack_size(STACK if is_small else before)
        try:
            super().start()
        finally:
            if is_small and (now := threading.stack_size(before)) != STACK:
                threading.stack_size(now)  # the job has just asked for another one


def _is_told(wait: Callable[[Any, float], bool], began: Any) -> bool:
    return any(wait(began, LOOK_S) for _ in range(LOOKS))


def is_own_thread() -> bool:
    """Return whether the calling thread is one of dynprof's own, for which no script waits."""
    return getattr(_here, "is_own", False)


def own_thread(run: Callable[..., object], name: str, *args: object) -> threading.Thread:
    """Return a thread, not yet started, that runs ``run`` and receives no signals.

    Processes and threads that it starts receive none either, until they say otherwise.
    """
    return _Thread(partial(run, *args), name)


def _run_apart(run: Callable[[], object]) -> None:
    while not _ends(run):
        time.sleep(AGAIN_S)


def _ends(run: Callable[[], object]) -> bool:
    """Run what goes round by round; False where there was no memory for what lies around those."""
    try:
        _here.is_own = True
        if hasattr(signal, "pthread_sigmask"):
            kept = {getattr(signal, name, None) for name in _OF_THE_THREAD}
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - kept)
        run()
    except MemoryError:
        return False
    return True

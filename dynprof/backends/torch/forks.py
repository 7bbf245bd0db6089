"""Lets a process that has used libkineto fork, on any thread, children that end.

The first use of ``torch.profiler`` starts a thread of libkineto's that waits for new settings. A
child forked later has no such thread, but waits for it in ``exit()``, for ever; with torch 2.13.0
three lines without dynprof show it. Only dynolog's daemon has use for that thread; where that is
asked for (``KINETO_USE_DAEMON``), it is left alone, else it is ended as soon as it is there. No
fork needs to do that, then, and no two of them can do it at once.

While a profiler is being opened or closed its locks are held, and a child forked at that moment
could never take them. So forks wait for the moment to pass, and a little longer: every other thread
takes one of torch's locks at its next operator, for less than a microsecond, to learn of it.

They wait, too, while events of a kind are collected or written for the first time: what C++ makes
then and is to destroy at the end it tells glibc, under a lock that no child lets go of. The thread
that has it may be kept from a processor for long, or by a fork itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
import time
from typing import TYPE_CHECKING

from dynprof.backends.torch.closing import COLLECTOR, usable_functions
from dynprof.backends.torch.detached_close import library
from dynprof.backends.torch.kineto import KINETO
from dynprof.backends.torch.open_annotations import ANNOTATIONS
from dynprof.backends.torch.quiescence import wait_until_asleep
from dynprof.errors import BackendError
from dynprof.runtime.graph_captures import GRAPH_CAPTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOADER = "_ZN9libkineto12ConfigLoader"
_INSTANCE, _STOP_THREAD = f"{_LOADER}8instanceEv", f"{_LOADER}10stopThreadEv"

_SETTINGS = ("use_device", "record_shapes", "profile_memory", "with_stack", "with_flops")
_PAUSE_S = 0.005
PROPAGATION_S = 0.03
"""For so long after a change busy threads may still be learning of it."""
FIRST_USE_S = 5.0
"""For so long forks wait for what is done for the first time."""


class _Gate:
    """Lets either profilers be opened and closed, or the process fork."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._settled_at_s = self._first_use_until_s = 0.0
        self._done: set[object] = set()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Let forks of other threads wait for the body, which changes a profiler."""
        with self._lock:
            try:
                yield
            finally:
                self._settled_at_s = time.monotonic() + PROPAGATION_S

    @contextlib.contextmanager
    def first_use(self, what: object) -> Iterator[None]:
        """Hold forks back during the body, once for each kind, up to :data:`FIRST_USE_S`."""
        if what in self._done:
            yield
            return
        with self._lock:  # forks that are under way end before
            self._first_use_until_s = time.monotonic() + FIRST_USE_S
        try:
            yield
            self._done.add(what)
        finally:
            self._first_use_until_s = 0.0

    def begin_fork(self) -> None:
        """Wait for such a change."""
        while time.monotonic() < self._first_use_until_s:
            time.sleep(_PAUSE_S)
        self._lock.acquire()
        while (wait_s := self._settled_at_s - time.monotonic()) > 0:
            time.sleep(wait_s)

    def end_fork(self) -> None:
        """Let changes go on; nothing to do for a fork that had begun before it was guarded."""
        with contextlib.suppress(RuntimeError):  # the lock belongs to no fork of this thread
            self._lock.release()

    def reset_in_child(self) -> None:
        """Forget in a child who held the gate in its parent."""
        self._lock = threading.RLock()
        self._settled_at_s = self._first_use_until_s = 0.0


_gate = _Gate()


@contextlib.contextmanager
def profiler_change() -> Iterator[None]:
    """Let forks of other threads wait while the body opens or closes a profiler.

    And graph captures, which that would break.

    Raises:
        BackendError: One is under way, and does not end.
    """
    guard_forks()
    with GRAPH_CAPTURES.held_back(), _gate.change():
        yield


def first_use(what: str, profiler: object, action: Callable[[], None]) -> None:
    """Let forks wait for what C++ does for the first time, on the thread that collects events.

    Args:
        what: It does.
        profiler: Torch's object, whose settings tell which code runs.
        action: Has it done.
    """
    with _gate.first_use((what, *(getattr(profiler, name, None) for name in _SETTINGS))):
        action()


@functools.cache
def guard_forks() -> None:
    """Guard every fork that begins from now on; best done long before a profiler is opened."""
    os.register_at_fork(
        before=_gate.begin_fork,
        after_in_parent=_gate.end_fork,
        after_in_child=_reset_in_child,  # after all of forget_in_child(), whatever is imported when
    )


def _reset_in_child() -> None:
    """Forget in the child what its parent records: none of its threads is here."""
    COLLECTOR.forget()
    ANNOTATIONS.forget()
    with contextlib.suppress(BackendError):
        usable_functions().detach_in_child()
    KINETO.reset_in_child()
    _gate.reset_in_child()


def end_config_thread(new: set[int]) -> None:
    """End libkineto's thread, if it is there; in :func:`profiler_change`, with libkineto in use.

    Keeps the GIL, so that no two threads end it at once: both would wait for it, which crashes.

    Args:
        new: Threads that libkineto may have started just now. One that is told to end after it
            last looked, but before it sleeps, sleeps for five seconds first, and all Python with
            it; so they may fall asleep before.
    """
    if os.environ.get("KINETO_USE_DAEMON"):
        return
    if stop := _stop_function():
        wait_until_asleep(new)
        stop()


@functools.cache
def _stop_function() -> Callable[[], None] | None:
    try:
        functions = ctypes.PyDLL(str(library()))
        instance, stop_thread = functions[_INSTANCE], functions[_STOP_THREAD]
    except (OSError, AttributeError):
        return None  # another build or system, which may not have the thread either
    instance.restype, instance.argtypes = ctypes.c_void_p, []
    stop_thread.restype, stop_thread.argtypes = None, [ctypes.c_void_p]
    return lambda: stop_thread(instance())

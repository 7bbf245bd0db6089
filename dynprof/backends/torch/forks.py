"""Makes forks safe, on any thread, in a process that has used libkineto.

The first use of ``torch.profiler`` starts a libkineto thread that waits for new settings. A child
forked later has no such thread, but waits for it in ``exit()``, for ever. With torch 2.13.0 three
lines without dynprof show it. Only dynolog's daemon uses that thread. Where the environment
requests the daemon (``KINETO_USE_DAEMON``), dynprof leaves the thread alone; else it ends the
thread as soon as it exists. So no fork has to end it, and no two forks can do so at once.

While a profiler is being opened or closed its locks are held, and a child forked at that moment
could never take them. So forks wait until the change is over, and a little longer. Every other
thread learns of the change at its next operator, under one of torch's locks, in under 1 us.

Forks also wait while events of a kind are collected or written for the first time. C++ then
registers destructors with glibc, under a lock that a forked child would never release. The thread
that holds it may wait long for a CPU, or be held up by a fork itself.
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
"""Seconds between two checks of a fork that waits."""
PROPAGATION_S = 0.03
"""How long busy threads may take to learn of a change."""
FIRST_USE_S = 5.0
"""Longest wait of a fork for a first use."""


class _ForkLock:
    """Keeps profiler changes and forks apart."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._propagated_at_s = self._first_use_until_s = 0.0
        self._done: set[object] = set()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """Hold back forks of other threads during the body, which changes a profiler."""
        with self._lock:
            try:
                yield
            finally:
                self._propagated_at_s = time.monotonic() + PROPAGATION_S

    @contextlib.contextmanager
    def first_use(self, what: object) -> Iterator[None]:
        """Hold forks back during the body, once for each kind, up to :data:`FIRST_USE_S`."""
        if what in self._done:
            yield
            return
        with self._lock:  # waits for forks in progress
            self._first_use_until_s = time.monotonic() + FIRST_USE_S
        try:
            yield
            self._done.add(what)
        finally:
            self._first_use_until_s = 0.0

    def begin_fork(self) -> None:
        """Wait for changes and first uses, and take the lock."""
        while time.monotonic() < self._first_use_until_s:
            time.sleep(_PAUSE_S)
        self._lock.acquire()
        while (wait_s := self._propagated_at_s - time.monotonic()) > 0:
            time.sleep(wait_s)

    def end_fork(self) -> None:
        """Release the lock; does nothing for a fork that began before forks were guarded."""
        with contextlib.suppress(RuntimeError):  # no fork of this thread holds the lock
            self._lock.release()

    def reset_in_child(self) -> None:
        """Replace the lock in a forked child, which lacks the thread that may have held it."""
        self._lock = threading.RLock()
        self._propagated_at_s = self._first_use_until_s = 0.0


_fork_lock = _ForkLock()


@contextlib.contextmanager
def profiler_change() -> Iterator[None]:
    """Hold back other threads' forks while the body opens or closes a profiler.

    Also holds back graph captures, which the change would break.

    Raises:
        BackendError: A graph capture is in progress and does not end.
    """
    guard_forks()
    with GRAPH_CAPTURES.block_captures(), _fork_lock.change():
        yield


def first_use(what: str, profiler: object, action: Callable[[], None]) -> None:
    """Hold back forks while C++ runs code for the first time, on the collecting thread.

    Args:
        what: The name of the work.
        profiler: Torch's object, whose settings determine which code runs.
        action: Does the work.
    """
    with _fork_lock.first_use((what, *(getattr(profiler, name, None) for name in _SETTINGS))):
        action()


@functools.cache
def guard_forks() -> None:
    """Guard all forks from now on; call it long before a profiler is opened."""
    os.register_at_fork(
        before=_fork_lock.begin_fork,
        after_in_parent=_fork_lock.end_fork,
        after_in_child=_reset_in_child,  # after all of call_in_child(), in any import order
    )


def _reset_in_child() -> None:
    """Drop the parent's recordings in the child, which has none of the parent's threads."""
    COLLECTOR.reset()
    ANNOTATIONS.reset()
    with contextlib.suppress(BackendError):
        usable_functions().detach_in_child()
    KINETO.reset_in_child()
    _fork_lock.reset_in_child()


def end_config_thread(new: set[int]) -> None:
    """End libkineto's thread, if it exists; in :func:`profiler_change`, with libkineto in use.

    Holds the GIL, so that no two threads end it at once: both would wait for it, which crashes.

    Args:
        new: Threads that libkineto may have just started. This first waits until they sleep. A
            thread misses the order to end between its last check and its sleep. It then sleeps
            for five seconds, and all Python waits for it.
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

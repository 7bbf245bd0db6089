"""Which way a ``torch.profiler`` recording is closed, and where the slow half of it runs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import resource
import sys
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.detached_close import DetachedClose, find_functions
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.backends.torch.trace_writing import writer_of
from dynprof.errors import BackendError, describe
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_KINDS = (1, 2, 4, 5, 10, 17, 38, 39)
"""What Kineto has recorded, by the numbers of ``CUpti_ActivityKind``: copies, sets, calls of the
driver and of the runtime, kernels, overhead, synchronisations, correlations."""


def stop_cupti() -> None:
    """Record nothing more, as Kineto says it itself once it begins to collect; microseconds."""
    if library := loaded_cupti():
        for kind in _KINDS:
            library.cuptiActivityDisable(kind)


@functools.cache
def loaded_cupti() -> ctypes.CDLL | None:
    """Return the library that torch has loaded with itself; None where it has none."""
    major = str(sys.modules["torch"].version.cuda).partition(".")[0]
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(f"libcupti.so.{major}", mode=os.RTLD_NOLOAD)
        library.cuptiActivityDisable.argtypes = [ctypes.c_uint32]
        return library
    return None


VARIABLE = "DYNPROF_CLOSE"
SELF_TEST_WAIT_S = 15.0
"""So long after the self-test began nobody waits for it any more: the machine is busy."""
_TESTING = "the self-test of the detached close is still running"


def why_close_is_unknown(activities: tuple[str, ...]) -> str | None:
    """Say why it is not known yet how a window will be closed; None where it is."""
    if _why_inline(activities) is not None or SELF_TEST.answer is not None:
        return None
    return _TESTING if SELF_TEST.running_s() < SELF_TEST_WAIT_S else None


def why_inline(activities: tuple[str, ...]) -> str:
    """Say why windows close inline; empty where they do not, or that is not known yet."""
    return "" if why_close_is_unknown(activities) else choose_close(activities)[1]


def why_detached_is_unsafe() -> str:
    """Say what the self-test has against this build, or that it has not ended; empty if nothing."""
    return _TESTING if SELF_TEST.answer is None else SELF_TEST.answer


def start_self_test() -> bool:
    """Have the self-test made, unless it was; return whether its answer is worth waiting for."""
    SELF_TEST.begin()
    return SELF_TEST.answer is None and SELF_TEST.running_s() < SELF_TEST_WAIT_S


def synchronize_device(device: str | None) -> str:
    """Wait for a kind of device, as the ordinary close does, and record nothing more of it.

    Its last kernels are kept, and none of the steps that come while the events are collected.

    Returns:
        In words for how long; nothing where there is no device.
    """
    if not device:
        return ""
    began_s = time.perf_counter()
    getattr(sys.modules["torch"], device).synchronize()
    stop_cupti()
    return f", {(time.perf_counter() - began_s) * 1e3:.1f} ms of it waiting for the device"


def record_minimum(profile: Any) -> bool:
    """Let a profile of torch's that was only prepared record as little as it can.

    To be ended it has to begin; no call and no operator of another thread needs to be seen for it.

    Args:
        profile: A ``torch.autograd.profiler.profile``.

    Returns:
        Whether it traces calls of Python: no.
    """
    for name in ("with_stack", "profile_memory", "record_shapes", "with_flops", "with_modules"):
        setattr(profile, name, False)
    profile.experimental_config = type(profile.experimental_config)()
    return False


def _why_inline(activities: tuple[str, ...]) -> str | None:
    """Say why the self-test does not matter; None where it does."""
    asked = os.environ.get(VARIABLE, "")
    if asked == "inline":
        return f"{VARIABLE}=inline"
    if activities != ("CPU",) and asked != "detached":
        return f"on a device {VARIABLE}=detached asks for the detached close"
    if activities != ("CPU",) and not loaded_cupti():
        return "without CUPTI a device is recorded beyond the window"
    if asked != "detached" and (limit := _limit_of_memory()):
        return f"the process's memory is limited ({limit})"
    return None


def _limit_of_memory() -> str:
    """Return by what a thread may find no memory, where C++ knows no other way than to abort."""
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):  # which counts stacks of threads, too
        if resource.getrlimit(getattr(resource, name))[0] != resource.RLIM_INFINITY:
            return name
    return ""


def usable_functions() -> DetachedClose:
    """Return the functions of libtorch, unless the self-test has something against them.

    While it runs they may be used: a forked child has to take a profiler off its thread.

    Raises:
        BackendError: It has, and to call them may crash the job; or they are missing.
    """
    if SELF_TEST.answer:
        raise BackendError(SELF_TEST.answer)
    return find_functions()


def records_all_threads() -> bool | None:
    """Return whether a profiler of all threads is on; None where that cannot be asked."""
    with contextlib.suppress(BackendError):
        return usable_functions().records_all_threads()
    return None


def choose_close(
    activities: tuple[str, ...], in_place: str = ""
) -> tuple[DetachedClose | None, str]:
    """Return the detached close where it may be used, else why the close is inline.

    Args:
        activities: What is recorded.
        in_place: Why the script wants the ordinary close; empty where it does not.
    """
    if in_place:
        return None, in_place
    if reason := _why_inline(activities) or why_detached_is_unsafe():
        return None, reason
    try:
        return find_functions(), ""
    except BackendError as error:
        return None, str(error)


def choose_writer(profiler: Any) -> Callable[[Path], None] | None:
    """Return what writes without the GIL what torch has closed; None where only torch may write.

    Args:
        profiler: A ``torch.profiler.profile`` that has ended.
    """
    with contextlib.suppress(BackendError):
        functions, _ = choose_close(("CPU",))
        return writer_of(profiler.profiler, functions) if functions else None
    return None


NICENESS = 10
"""Of the collecting thread; gives it a tenth of a processor that others want as well.

Measured beside a loop whose OpenMP threads kept both cores busy, saving 20 steps with shapes and
memory: 0 collects in 2 s, with steps 3 times as long meanwhile; 10 in 12 s, with steps a tenth
longer, at the same price in all; 19 in 60 to 110 s, at five times the price, because each slice
it gets keeps all threads of a parallel region waiting.
"""


class LowPriorityThread:
    """A thread that gives way to others, started when it is first needed.

    One for all windows: malloc gives a new thread another heap, and each of these would grow to
    what the largest window needs. No ``ThreadPoolExecutor``: the end of the process would wait for
    it, however long it collects.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]]
        self._tasks = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()  # two threads would use libkineto at once

    def begin(self, action: Callable[[], None]) -> Future[None]:
        """Have ``action`` run there, after what was begun before.

        The result of the future raises a ``BackendError`` or an ``OSError`` where it failed.

        Only for work without the GIL: a thread that is kept from the processor while it holds
        the GIL keeps everybody waiting.
        """
        outcome = Future[None]()
        try:
            self.start()
        except RuntimeError:  # the interpreter is ending and starts no more threads
            _run(action, outcome)
        else:
            self._tasks.put((action, outcome))
        return outcome

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: No thread can be started.
        """
        with self._starting:
            if self._thread is None:
                thread = own_thread(self._serve, "dynprof-collect")
                thread.start()
                self._thread = thread

    def forget(self) -> None:
        """Begin anew in a forked child, which has no such thread."""
        self._tasks, self._thread = queue.SimpleQueue(), None
        self._starting = threading.RLock()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            action, outcome = self._tasks.get()
            _run(action, outcome)
            del action, outcome  # they hold the events of a whole window


def _run(action: Callable[[], None], outcome: Future[None]) -> None:
    try:
        action()
    except (BackendError, OSError) as error:
        outcome.set_exception(error)
    except Exception as error:  # noqa: BLE001 - the thread serves the next window
        failure = BackendError(f"collecting failed: {describe(error)}")
        failure.__cause__ = error
        outcome.set_exception(failure)
    else:
        outcome.set_result(None)


COLLECTOR = LowPriorityThread()
"""The process needs one: libkineto has one session."""

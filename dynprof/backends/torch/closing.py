"""The choice between detached and inline close, and the thread that runs the slow half."""

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

from dynprof.backends.torch.detached_close import DetachedClose, find_functions, writer_of
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.errors import BackendError, describe
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_KINDS = (1, 2, 4, 5, 10, 17, 38, 39)
"""The activities that Kineto enables, as numbers of ``CUpti_ActivityKind``: copies, sets, calls of
the driver and of the runtime, kernels, overhead, synchronisations, correlations."""
VARIABLE = "DYNPROF_CLOSE"
SELF_TEST_WAIT_S = 15.0
"""Longest wait for the self-test since its start; beyond it the machine is busy."""
_TESTING = "the self-test of the detached close is still running"
NICENESS = 10
"""Niceness of the collecting thread; gives it a tenth of a contended CPU.

Measured with a loop whose OpenMP threads kept both cores busy, saving 20 steps with shapes and
memory. 0: collects in 2 s, with steps 3 times as long. 10: collects in 12 s, with steps a tenth
longer; the total cost is the same. 19: collects in 60 to 110 s, at five times the cost. Each of
its time slices keeps all threads of a parallel region waiting.
"""


def stop_cupti() -> None:
    """Disable CUPTI's activities, as Kineto does when it begins to collect; microseconds."""
    if library := loaded_cupti():
        for kind in _KINDS:
            library.cuptiActivityDisable(kind)


@functools.cache
def loaded_cupti() -> ctypes.CDLL | None:
    """Return the CUPTI library that torch has loaded; None where it has none."""
    major = str(sys.modules["torch"].version.cuda).partition(".")[0]
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(f"libcupti.so.{major}", mode=os.RTLD_NOLOAD)
        library.cuptiActivityDisable.argtypes = [ctypes.c_uint32]
        return library
    return None


def why_close_is_unknown(activities: tuple[str, ...]) -> str | None:
    """Return why the way of closing a window is not known yet; None where it is known."""
    if _why_inline(activities) is not None or SELF_TEST.answer is not None:
        return None
    return _TESTING if SELF_TEST.running_s() < SELF_TEST_WAIT_S else None


def why_inline(activities: tuple[str, ...]) -> str:
    """Return why windows close inline; empty where they do not, or where it is not known yet."""
    return "" if why_close_is_unknown(activities) else choose_close(activities)[1]


def why_detached_is_unsafe() -> str:
    """Return why the self-test forbids the detached close, or that it still runs; else empty."""
    return _TESTING if SELF_TEST.answer is None else SELF_TEST.answer


def start_self_test() -> bool:
    """Start the self-test unless it has run; return whether to wait for its answer."""
    SELF_TEST.begin()
    return SELF_TEST.answer is None and SELF_TEST.running_s() < SELF_TEST_WAIT_S


def synchronize_device(device: str | None) -> str:
    """Wait for a kind of device, as the ordinary close does, and stop recording it.

    This keeps the window's last kernels, and none of the steps that run during the collection.

    Returns:
        Text that says how long it waited; empty where there is no device.
    """
    if not device:
        return ""
    began_s = time.perf_counter()
    getattr(sys.modules["torch"], device).synchronize()
    stop_cupti()
    return f", {(time.perf_counter() - began_s) * 1e3:.1f} ms of it waiting for the device"


def record_minimum(profile: Any) -> bool:
    """Make a torch profile that was only prepared record as little as possible.

    It must start before it can end; for that it need not record calls or other threads.

    Args:
        profile: A ``torch.autograd.profiler.profile``.

    Returns:
        Whether it traces Python calls: always False.
    """
    for name in ("with_stack", "profile_memory", "record_shapes", "with_flops", "with_modules"):
        setattr(profile, name, False)
    profile.experimental_config = type(profile.experimental_config)()
    return False


def _why_inline(activities: tuple[str, ...]) -> str | None:
    """Return why to close inline whatever the self-test says; None where its answer decides."""
    asked = os.environ.get(VARIABLE, "")
    if asked == "inline":
        return f"{VARIABLE}=inline"
    if activities != ("CPU",) and asked != "detached":
        return f"on a device the detached close needs {VARIABLE}=detached"
    if activities != ("CPU",) and not loaded_cupti():
        return "without CUPTI a device is recorded beyond the window"
    if asked != "detached" and (limit := _limit_of_memory()):
        return f"the process's memory is limited ({limit})"
    return None


def _limit_of_memory() -> str:
    """Return the limit on this process's memory, at which C++ aborts; empty for none."""
    for name in ("RLIMIT_AS", "RLIMIT_DATA"):  # the latter counts thread stacks too
        if resource.getrlimit(getattr(resource, name))[0] != resource.RLIM_INFINITY:
            return name
    return ""


def usable_functions() -> DetachedClose:
    """Return libtorch's functions, unless the self-test forbids them.

    They may be used while the test runs: a forked child has to detach a profiler.

    Raises:
        BackendError: The self-test found that calls may crash the job, or functions are missing.
    """
    if SELF_TEST.answer:
        raise BackendError(SELF_TEST.answer)
    return find_functions()


def records_all_threads() -> bool | None:
    """Return whether a profiler of all threads is on; None where that is unknown."""
    with contextlib.suppress(BackendError):
        return usable_functions().records_all_threads()
    return None


def choose_close(
    activities: tuple[str, ...], in_place: str = ""
) -> tuple[DetachedClose | None, str]:
    """Return the detached close where it may be used, else why the close is inline.

    Args:
        activities: The recorded activities.
        in_place: Why the script needs the ordinary close; empty where it does not.
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
    """Return a function that writes torch's results without the GIL; None where torch must write.

    Args:
        profiler: A ``torch.profiler.profile`` that has ended.
    """
    with contextlib.suppress(BackendError):
        functions, _ = choose_close(("CPU",))
        return writer_of(profiler.profiler, functions) if functions else None
    return None


class LowPriorityThread:
    """A thread of low priority, started when it is first needed.

    It serves all windows: malloc gives each new thread a heap, which would grow to the size of the
    largest window. A ``ThreadPoolExecutor`` will not do: process exit would wait for it without a
    limit.
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], None], Future[None]]]
        self._tasks = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.RLock()  # a second thread would use libkineto at the same time

    def begin(self, action: Callable[[], None]) -> Future[None]:
        """Run ``action`` on the thread, after the earlier ones.

        The future's result raises ``BackendError`` or ``OSError`` where the action failed.

        Only for work without the GIL: a low-priority thread that holds the GIL blocks all others.
        """
        outcome = Future[None]()
        try:
            self.start()
        except RuntimeError:  # the interpreter is ending and starts no more threads
            _finish(outcome, _failure_of(action))
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

    def reset(self) -> None:
        """Reset in a forked child, which does not have the thread."""
        self._tasks, self._thread = queue.SimpleQueue(), None
        self._starting = threading.RLock()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            action, outcome = self._tasks.get()
            failure = _failure_of(action)
            del action  # the events of a whole window: freed before the next one may open
            _finish(outcome, failure)
            del outcome, failure


def _failure_of(action: Callable[[], None]) -> Exception | None:
    """Run an action; return why it failed, None where it did not."""
    try:
        action()
    except (BackendError, OSError) as error:
        return error
    except Exception as error:  # noqa: BLE001 - the thread serves the next window
        failure = BackendError(f"collecting failed: {describe(error)}")
        failure.__cause__ = error
        return failure
    return None


def _finish(outcome: Future[None], failure: Exception | None) -> None:
    if failure:
        outcome.set_exception(failure)
    else:
        outcome.set_result(None)


COLLECTOR = LowPriorityThread()
"""The process's collecting thread; one is enough, as libkineto has one session."""

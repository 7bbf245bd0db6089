"""The per-thread profile functions by which ``with_stack`` and VizTracer trace Python calls."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections import deque
from itertools import accumulate, chain, repeat, takewhile
from typing import Any

_TORCH_CONTEXT = "TraceContext"
"""The type name of the object that torch's profile function receives."""


class ProfileFunctionCheck:
    """Checks whether this thread's profile function was replaced during a recording.

    Args:
        are_recorded: Whether a profiler records this thread's calls.

    Attributes:
        cut: What replaced the function by the end, as a sentence; empty where nothing did, or
            where another thread called :meth:`end`.
    """

    def __init__(self, *, are_recorded: bool) -> None:
        self._here = threading.local()  # thread ids are reused
        self._here.is_it, self._given = True, are_recorded and sys.getprofile()
        self.cut: tuple[str, ...] = ()

    def end(self) -> None:
        """Check at the end of the recording."""
        is_here = hasattr(self._here, "is_it")
        if is_here and self._given and sys.getprofile() is not self._given:
            what = "a profile function of its own, by sys.setprofile() or cProfile"
            self.cut = (f"the script has set {what}: later calls of that thread are missing",)


def stop_tracing_calls() -> None:
    """Remove the profile functions of all threads of this process; microseconds a thread.

    Torch removes its own as it collects, and at once frees the memory that the function writes
    to. A thread that waits for the GIL inside that function would then write into freed memory.
    """
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(None)
    else:
        _clear_profile_functions()


def _clear_profile_functions() -> None:
    """Do what Python 3.12 has a function for, by C functions that Python exports.

    Leaving the other threads to torch is not safe. With threads that run compiled code, one of two
    runs of 80 windows that close inline crashed. Most calls in the traces came after the window.

    A single C call walks over the threads: between two bytecodes another thread could run and end.
    """
    head, following = (
        _python_function("PyInterpreterState_ThreadHead", 1),
        _python_function("PyThreadState_Next", 2),
    )
    first = map(head, (_python_function("PyInterpreterState_Get", 0)(),))
    threads = accumulate(chain(first, repeat(None)), following)
    put = map(
        _python_function("_PyEval_SetProfile", 3),
        takewhile(bool, threads),
        repeat(None),
        repeat(None),
    )
    collects = gc.isenabled()
    gc.disable()  # a collection could call back into Python
    try:
        deque(put, maxlen=0)
    finally:
        if collects:
            gc.enable()


def _python_function(name: str, arguments: int) -> Any:
    """Return a C function of Python's that takes and returns pointers and holds the GIL."""
    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p] * arguments
    return function


def remove_torch_tracing() -> None:
    """Remove torch's profile function from the only thread of a forked child.

    It would record every call for ever, in growing memory, under locks that other threads held.
    """
    if type(sys.getprofile()).__name__ == _TORCH_CONTEXT:
        sys.setprofile(None)

"""Tracing of Python's calls, by ``with_stack`` and VizTracer: each thread has a function for it."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections import deque
from itertools import accumulate, chain, repeat, takewhile
from typing import Any

_TORCH_CONTEXT = "TraceContext"
"""The type of what torch's profile function is given."""


class ProfileFunctionCheck:
    """Knows whether the function that the calls of this thread are given to still gets them.

    Args:
        are_recorded: Whether anybody records them.

    Attributes:
        cut: What has taken its place by the end, in a sentence; empty where nothing has, or another
            thread came to the end.
    """

    def __init__(self, *, are_recorded: bool) -> None:
        self._here = threading.local()  # an ended thread's number is the next one's
        self._here.is_it, self._given = True, are_recorded and sys.getprofile()
        self.cut: tuple[str, ...] = ()

    def end(self) -> None:
        """Look once more."""
        is_here = hasattr(self._here, "is_it")
        if is_here and self._given and sys.getprofile() is not self._given:
            what = "a profile function of its own, by sys.setprofile() or cProfile"
            self.cut = (f"the script has set {what}: later calls of that thread are not there",)


def stop_tracing_calls() -> None:
    """Have no thread of this process call a profile function any more; microseconds a thread.

    Torch does so as it collects, and frees what its function writes into at once: a thread that
    waits for the GIL amid that function would write into freed memory.
    """
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(None)
    else:
        _clear_profile_functions()


def _clear_profile_functions() -> None:
    """Do what Python 3.12 has a function for; with functions of C that Python exports, by name.

    To leave the other threads to torch is no choice. Next to threads with compiled code one of two
    runs of 80 windows that close inline crashed, and most calls in the traces came after the
    window.

    One call of C walks over the threads: between two bytecodes another one could run, and end.
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
    gc.disable()  # what is called back then may be Python
    try:
        deque(put, maxlen=0)
    finally:
        if collects:
            gc.enable()


def _python_function(name: str, arguments: int) -> Any:
    """Return a function of Python's that takes and returns pointers; it keeps the GIL."""
    function = ctypes.pythonapi[name]
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p] * arguments
    return function


def remove_torch_tracing() -> None:
    """Take torch's function off the only thread of a forked child.

    It would note every call for ever, in memory that grows, behind locks that others held.
    """
    if type(sys.getprofile()).__name__ == _TORCH_CONTEXT:
        sys.setprofile(None)

"""Ends the tracing of Python's calls, which torch's ``with_stack`` begins on every thread.

Torch ends it itself when it collects, and frees at once what its function writes into. A thread
that waits for the GIL in the midst of that function then writes into freed memory; so it is ended
before, and the collecting waits for such threads (:mod:`dynprof.backends.quiescence`).
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections import deque
from itertools import chain
from typing import Any

from dynprof.process.garbage_collector import no_collection

_TORCHS = "TraceContext"
"""The type of what torch's profile function is given."""


def stop_tracing_calls() -> None:
    """Have no thread of this process call a profile function any more; microseconds a thread."""
    python: Any = ctypes.pythonapi  # keeps the GIL
    if sys.version_info >= (3, 12):
        python.PyEval_SetProfileAllThreads(None, None)
    else:
        with no_collection():
            _set_no_profile_on_each(python)


def leave_calls_untraced() -> None:
    """Take torch's function off the only thread of a forked child, where nobody ends it.

    It would note every call for ever, in memory that grows, behind locks that others held.
    """
    if type(sys.getprofile()).__name__ == _TORCHS:
        sys.setprofile(None)


def _set_no_profile_on_each(python: Any) -> None:
    """Do what Python 3.12 has a function for.

    Between two bytecodes another thread may run, and end, whose state is freed; so the whole walk
    over the list of states is one call into iterators of C.
    """
    head = _function(python, "PyInterpreterState_ThreadHead", 1)
    following = _function(python, "PyThreadState_Next", 2)  # takes one: C lets the other be
    end = _function(python, "_PyEval_SetProfile", 3)
    interpreter = ctypes.c_void_p(_function(python, "PyInterpreterState_Get", 0)())
    nothing = itertools.repeat(None)
    first = map(head, (interpreter,))
    threads = itertools.takewhile(bool, itertools.accumulate(chain(first, nothing), following))
    deque(map(end, threads, nothing, nothing), maxlen=0)


def _function(python: Any, name: str, arguments: int) -> Any:
    """Return a function of Python's that takes and returns pointers."""
    function = python[name]
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_void_p] * arguments
    return function

"""Ends the tracing of Python's calls, which torch's ``with_stack`` begins on every thread.

Torch ends it itself when it collects, and frees at once what its function writes into. A thread
that waits for the GIL in the midst of that function then writes into freed memory; so it is ended
before, and the collecting waits for such threads (:mod:`dynprof.backends.quiescence`).
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any


def stop_tracing_calls() -> None:
    """Have no thread of this process call a profile function any more; microseconds a thread."""
    python: Any = ctypes.pythonapi  # keeps the GIL
    if sys.version_info >= (3, 12):
        python.PyEval_SetProfileAllThreads(None, None)
        return
    states = ("PyInterpreterState_Get", "PyInterpreterState_ThreadHead", "PyThreadState_Next")
    current, first, following = (_returning_pointer(python[name]) for name in states)
    thread = first(ctypes.c_void_p(current()))
    while thread:
        python._PyEval_SetProfile(ctypes.c_void_p(thread), None, None)
        thread = following(ctypes.c_void_p(thread))


def _returning_pointer(function: Any) -> Any:
    function.restype = ctypes.c_void_p
    return function

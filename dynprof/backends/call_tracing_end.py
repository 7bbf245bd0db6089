"""Ends the tracing of Python's calls, which torch's ``with_stack`` begins on every thread.

Torch ends it itself when it collects, and frees at once what its function writes into. A thread
that waits for the GIL in the midst of that function then writes into freed memory; so it is ended
before, and the collecting waits for such threads (:mod:`dynprof.backends.quiescence`).
"""

from __future__ import annotations

import ctypes
import sys

from dynprof.process.profile_functions import take_off_each

_TORCHS = "TraceContext"
"""The type of what torch's profile function is given."""


def stop_tracing_calls() -> None:
    """Have no thread of this process call a profile function any more; microseconds a thread."""
    if sys.version_info >= (3, 12):
        ctypes.pythonapi.PyEval_SetProfileAllThreads(None, None)  # keeps the GIL
    else:
        take_off_each()


def leave_calls_untraced() -> None:
    """Take torch's function off the only thread of a forked child, where nobody ends it.

    It would note every call for ever, in memory that grows, behind locks that others held.
    """
    if type(sys.getprofile()).__name__ == _TORCHS:
        sys.setprofile(None)

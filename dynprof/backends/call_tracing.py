"""Tracing of Python's calls, by ``with_stack`` and VizTracer: each thread has a function for it."""

from __future__ import annotations

import sys
import threading

_TORCHS = "TraceContext"
"""The type of what torch's profile function is given."""


class CallsOfThread:
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
    """Have torch note no more calls: those after the window's end are none of it.

    Before Python 3.12 only the calling thread can be told; torch tells the others as it collects.
    """
    if sys.version_info >= (3, 12):
        threading.setprofile_all_threads(None)
    else:
        sys.setprofile(None)


def leave_calls_untraced() -> None:
    """Take torch's function off the only thread of a forked child, where nobody ends it.

    It would note every call for ever, in memory that grows, behind locks that others held.
    """
    if type(sys.getprofile()).__name__ == _TORCHS:
        sys.setprofile(None)

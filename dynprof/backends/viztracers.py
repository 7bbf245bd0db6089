"""VizTracers for windows of plain Python: what they leave out, and which of them is free."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from typing import Any

from dynprof.process.threads import own_thread

MAX_EVENTS = 500_000
"""Size of VizTracer's ring; the oldest events give way. Saving a full one pauses the job 0.2 s."""

_PACKAGE = Path(__file__).parent.parent
_OWN_FILES = (
    "backends",
    "captures",
    "companions",
    "config",
    "files",
    "journal",
    "marks/open_ranges.py",
    "marks/sinks.py",
    "mstx.py",
    "process",
    "profiler",
    "requests",
    "session",
    "wall.py",
    "windows",
)
"""What runs inside ``step()`` or beside it while a window is open and is not the job's.

VizTracer leaves out all that is called there as well: nothing may be named that has calls of the
job's in it, as what lies around an annotated function has. Each costs every call most of a
nanosecond.
"""


def start_tracing(tracer: Any) -> None:
    """Switch it on, on this thread and on those that begin from now on."""
    _in_c(tracer).start()
    if sys.version_info < (3, 12):
        threading.setprofile(tracer.threadtracefunc)  # VizTracer does so the first time only


def stop_tracing(tracer: Any) -> None:
    """Switch it off, and leave the script a profile function that it has set since."""
    if sys.version_info < (3, 12) and sys.getprofile() not in (None, tracer):
        stopping = own_thread(_in_c(tracer).stop, "dynprof-tracer", None)
        stopping.start()  # VizTracer takes any function off the thread that stops it
        stopping.join()
    else:
        _in_c(tracer).stop(None)
    if threading.getprofile() == tracer.threadtracefunc:
        threading.setprofile(None)


def _in_c(tracer: Any) -> Any:
    """Return what has VizTracer's methods of C, without what its Python does around them."""
    return super(type(tracer), tracer)


class _Viztracers:
    """VizTracers that nobody uses: each window takes one and gives it back.

    Each that is made keeps one of the 1,024 keys of thread-local storage that the system gives a
    process, and VizTracer ends the process that has no more of them.
    """

    def __init__(self) -> None:
        self._free: list[Any] = []

    def take(self) -> Any:
        """Return one that records nothing yet."""
        return self._free.pop() if self._free else self._new()

    def _new(self) -> Any:
        from viztracer import VizTracer

        tracer = VizTracer(
            tracer_entries=MAX_EVENTS,
            verbose=0,
            ignore_frozen=True,
            exclude_files=[str(_PACKAGE / name) for name in _OWN_FILES],
            file_info=False,  # leaves the source code of the job out of the trace
            register_global=False,
        )
        # Up to Python 3.11 one that goes while the interpreter is taken apart calls threading,
        # which has gone by then, and leaves the error to whoever comes next. So none ever goes.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tracer))
        stop_tracing(tracer)  # it is on where it was made
        return tracer

    def give_back(self, tracer: Any) -> None:
        """Forget what one has recorded, for the next window."""
        tracer.clear()
        self._free.append(tracer)


VIZTRACERS = _Viztracers()

"""VizTracers for windows of plain Python: what they leave out, and which of them is free."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

from dynprof.process.profile_functions import ProfileFunction
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


def start_tracing(tracer: Any) -> ProfileFunction | None:
    """Switch tracing on, also for threads that begin later, which VizTracer does only once.

    Returns:
        What Python calls on each thread for it; None from Python 3.12 on, which knows better ways.
    """
    super(type(tracer), tracer).start()
    here = ProfileFunction.here()
    if here is None or here.given is not tracer:
        return None
    threading.setprofile(tracer.threadtracefunc)
    return here


def stop_tracing(tracer: Any, function: ProfileFunction | None) -> None:
    """Switch tracing off on all threads, and for those that begin later.

    VizTracer takes the profile function off this thread alone, also one that the script has put
    over its own; other threads would go on to call that for ever. Its own method, which notes first
    that it has stopped, would do nothing where a signal handler has raised amid that one.
    """
    here = ProfileFunction.here()
    super(type(tracer), tracer).stop(None)
    if function:
        function.take_off_all()
        if here and here != function:
            here.put_here()
    if threading.getprofile() == tracer.threadtracefunc:
        threading.setprofile(None)


class _Viztracers:
    """VizTracers that nobody uses: each window takes one and gives it back.

    Each that is made keeps one of the 1,024 keys of thread-local storage that the system gives a
    process, and VizTracer ends the process that has no more of them.
    """

    def __init__(self) -> None:
        self._free: list[Any] = []

    def take(self) -> Any:
        """Return one that records nothing yet.

        It traces the thread that makes it, and has the process end where it cannot: what a signal
        handler raises amid that comes up in the main thread alone, so another one makes it.
        """
        if not self._free:
            making = own_thread(self._make, "dynprof-tracer")
            making.start()
            making.join()
        return self._free.pop()

    def _make(self) -> None:
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
        stop_tracing(tracer, ProfileFunction.here())
        self._free.append(tracer)

    def give_back(self, tracer: Any) -> None:
        """Forget what one has recorded, for the next window."""
        tracer.clear()
        self._free.append(tracer)


VIZTRACERS = _Viztracers()

"""VizTracers for windows of plain Python: what they leave out, and which of them is free."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from typing import Any

from dynprof.errors import BackendError, describe
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


class Tracing:
    """VizTracer's tracing of calls, on all threads.

    Up to Python 3.11 VizTracer itself knows of the thread that starts it, and of those that begin
    later, but of these only the first time; and takes its function off the one that stops it alone,
    also one that the script has put over it there. From Python 3.12 on there are better ways.

    Args:
        tracer: A VizTracer.
    """

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._function = self._here()  # it is on where it was made
        self._beginning: ProfileFunction | None = None

    def start(self) -> None:
        """Switch it on."""
        _in_c(self._tracer).start()
        self._function = self._here()
        if self._function and VIZTRACERS.pythons:
            begin = self._tracer.threadtracefunc
            threading.setprofile(begin)
            self._beginning = ProfileFunction(VIZTRACERS.pythons, self._function.at, begin)
            self._beginning.put_on_all()  # it puts VizTracer's in its place when it is called

    def stop(self) -> None:
        """Switch it off.

        VizTracer's own method, which notes first that it has stopped, would do nothing where a
        signal handler has raised amid that one.
        """
        here = ProfileFunction.here()
        _in_c(self._tracer).stop(None)
        if self._beginning:
            self._beginning.take_off_given()
        if self._function:
            self._function.take_off_all()
            if here and here != self._function:
                here.put_here()
        if threading.getprofile() == self._tracer.threadtracefunc:
            threading.setprofile(None)

    def _here(self) -> ProfileFunction | None:
        here = ProfileFunction.here()
        return here if here and here.given is self._tracer else None


def _in_c(tracer: Any) -> Any:
    """Return what has the methods of C, without what VizTracer does around them."""
    return super(type(tracer), tracer)


class _Viztracers:
    """VizTracers that nobody uses: each window takes one and gives it back.

    Each that is made keeps one of the 1,024 keys of thread-local storage that the system gives a
    process, and VizTracer ends the process that has no more of them.

    Attributes:
        pythons: Where the function is by which Python calls those of :func:`sys.setprofile`.
    """

    def __init__(self) -> None:
        self._free: list[Any] = []
        self.pythons = 0

    def take(self) -> Any:
        """Return one that records nothing yet.

        It traces the thread that makes it, and has the process end where it cannot: what a signal
        handler raises amid that comes up in the main thread alone, so another one makes it.

        Raises:
            BackendError: It cannot be made, for want of memory, say.
        """
        if not self._free:
            failure = _Failure()
            making = own_thread(self._make, "dynprof-tracer", failure)
            making.start()
            making.join()
            if failure.error:
                raise BackendError(f"VizTracer cannot begin: {describe(failure.error)}")
        return self._free.pop()

    def _make(self, failure: _Failure) -> None:
        with failure:
            self._free.append(self._new())

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
        Tracing(tracer).stop()
        if sys.version_info < (3, 12):
            self.pythons = ProfileFunction.of_python(_nothing).address
        return tracer

    def give_back(self, tracer: Any) -> None:
        """Forget what one has recorded, for the next window."""
        tracer.clear()
        self._free.append(tracer)


class _Failure:
    """Keeps what is raised within a ``with`` on one thread, for another."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self.error = error
        return True


def _nothing(*_: object) -> None:
    """Be a profile function."""


VIZTRACERS = _Viztracers()

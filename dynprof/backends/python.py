"""The VizTracer backend, which records every call of any Python loop; never imports torch."""

from __future__ import annotations

import ctypes
import functools
import platform
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Saved
from dynprof.backends.call_tracing import ProfileFunctionCheck
from dynprof.backends.collectors import Collectors, collectors_for
from dynprof.errors import BackendError
from dynprof.extras import missing
from dynprof.requests.capabilities import Capabilities
from dynprof.runtime.threads import own_thread, threads_of_others

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dynprof.backends.base import MakeFolder
    from dynprof.backends.collectors import Collector
    from dynprof.requests.plan import Plan
    from dynprof.runtime.rank import Rank

MAX_EVENTS = 500_000
"""Events in VizTracer's ring; the oldest are dropped. Saving a full ring pauses the job 0.2 s."""
_PACKAGE = Path(__file__).parent.parent
_OWN_FILES = (
    "backends",
    "captures",
    "config",
    "journal",
    "marks/open_ranges.py",
    "marks/sinks.py",
    "mstx.py",
    "profiler",
    "requests",
    "runtime",
    "session",
    "watch",
    "windows",
)
"""dynprof's code that runs in ``step()`` or on other threads while a window is open.

VizTracer also leaves out every call made from these files. So no file belongs here that calls the
job's code, such as the wrapper of an annotated function. Each entry costs every call almost 1 ns.
"""
_HEAD_BYTES = 1 << 16
"""Bytes at the start of a trace in which its first call is."""
_CALL = re.compile(rb'"ts":([\d.]+),"ph":"X","cat":"fee","dur":([\d.]+)')


class PythonBackend:
    """Records with VizTracer."""

    name = "python"
    trace_suffix = "py.trace.json"

    def capabilities(self) -> Capabilities:
        """Offer CPU; imports VizTracer now, so that opening a window need not."""
        try:
            import viztracer  # noqa: F401
        except ImportError as error:
            absent = missing("python", "the Python profiler")
            why = absent or f"viztracer cannot be imported: {error}"
            return Capabilities(self.name, missing=why)
        return Capabilities(self.name, activities=("CPU",))

    def versions(self) -> dict[str, str]:
        """Return the versions of Python and VizTracer."""
        import viztracer

        return {"python": platform.python_version(), "viztracer": viztracer.__version__}

    def blocked_by(self, plan: Plan, *, elsewhere: bool = False) -> tuple[()]:  # noqa: ARG002
        """Return nothing: Python can be traced at any step."""
        return ()

    def prepare(self, plan: Plan, rank: Rank, scratch: MakeFolder) -> PythonRecording:  # noqa: ARG002
        """Switch the tracing of calls on."""
        if other := _other_profiler():
            raise BackendError(f"another profiler is active ({other}); stop it first")
        place = {"backend": "none", "rank": rank.number, "world_size": rank.world_size}
        members = collectors_for(plan.config.experimental, record_functions=True)
        collectors = Collectors(members)
        tracer = VIZTRACERS.take()
        tracer.process_name = f"rank {rank.number}"
        recording = PythonRecording(tracer, {"distributedInfo": place}, collectors)
        recording.switch_on()
        return recording


class PythonRecording:
    """A recording of VizTracer."""

    closing = "detached"
    without = ()
    results = None
    saves_concurrently = True
    note_step = None
    bound_to_thread = sys.version_info < (3, 12)
    """Up to Python 3.11 only the thread that started VizTracer can end it."""

    def __init__(
        self,
        tracer: Any,
        facts: dict[str, Any],
        collectors: Collector,
    ) -> None:
        self.collectors = collectors
        self._tracer = tracer
        self._profiler_id = ProfilerId()
        self._facts = facts
        self._step: tuple[int, float] | None = None
        self._steps: list[tuple[int, float]] = []
        self._calls = ProfileFunctionCheck(are_recorded=False)
        self._stopped_itself = self._is_on = False

    def switch_on(self) -> None:
        """Switch the tracing of calls on."""
        self._is_on = True
        self.fallbacks = _threads_left_out()
        start_tracing(self._tracer)
        self._calls = ProfileFunctionCheck(are_recorded=True)

    def blocked_by(self) -> str | None:
        """Return None: it can close at any step."""
        return None

    def load(self, *, inside_step: bool) -> None:
        """Return None: VizTracer's buffer has a fixed size and keeps the newest calls."""

    def start(self) -> None:
        """Drop the calls of the warm-up."""
        self._tracer.clear()

    def begin_step(self, number: int | None) -> None:
        """End the previous step and begin a step."""
        self._end_step()
        if number is not None:
            self._step = (number, self._tracer.getts())
            self._steps.append(self._step)

    def close(self) -> None:
        """Switch the tracing of calls off."""
        self._end_step()
        self._stopped_itself = not _is_recording(self._tracer)
        self._calls.end()
        self._switch_off(self._tracer)

    def save(self, path: Path) -> Saved:
        """Write the events as a Chrome trace.

        VizTracer's own ``save()`` creates a Python object of 1 KB for every event and holds the
        interpreter for most of 4 us an event. Its C code writes an event in 0.4 us, though without
        a pause in between.
        """
        tracer, self._tracer = self._tracer, None
        facts = {**self._facts, "baseTimeNanoseconds": tracer.get_base_time()}
        try:
            tracer.dump(str(path), sanitize_function_name=True)
        finally:
            VIZTRACERS.give_back(tracer)
        end = _tail(path)
        if b'"viztracer_metadata"' not in end:  # VizTracer does not check for failed writes
            raise BackendError("VizTracer could not write the whole trace")
        lost = self._lost_steps(path) if b'"overflow":true' in end else None
        numbers = [number for number, _ in self._steps[lost:]] or [0]
        return Saved(
            cut=tuple(self._cut(lost, numbers[0])),
            lost_steps=lost or 0,
            first_whole=numbers[0],
            facts=facts,
        )

    def _cut(self, lost: int | None, first_whole: int) -> Iterator[str]:
        if lost is not None:
            there = f"steps from {first_whole} on are complete"
            there = there if lost < len(self._steps) else "no step is complete"
            yield f"of more than {MAX_EVENTS:,} calls the oldest are lost; {there}"
        yield from self._calls.cut
        if self._stopped_itself:
            yield "VizTracer stopped before the end, at a return from a call it had not seen begin"

    def _lost_steps(self, path: Path) -> int:
        """Return the number of steps that began before the oldest call of the trace ended."""
        with path.open("rb") as file:
            oldest = _CALL.search(file.read(_HEAD_BYTES))
        since = float(oldest[1]) + float(oldest[2]) if oldest else float("inf")
        return sum(began < since for _, began in self._steps)

    def before_another_profiler(self, close_for_other: Callable[[], None]) -> None:
        """Have ``close_for_other`` called before another profiler gets this one's tool id."""

        def give_back() -> None:
            tracer = self._tracer
            close_for_other()
            if tracer is not None:  # the window may not have been closed
                self._switch_off(tracer)

        self._profiler_id.release_on_request(give_back)

    def discard(self) -> None:
        """Switch tracing off and drop the events."""
        tracer, self._tracer = self._tracer, None
        if tracer is not None:
            self._switch_off(tracer)
            VIZTRACERS.give_back(tracer)

    abandon = discard

    def _switch_off(self, tracer: Any) -> None:
        self._profiler_id.end()
        if self._is_on:
            stop_tracing(tracer)
            self._is_on = False

    def _end_step(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        number, began = step
        now = self._tracer.getts()
        name = f"ProfilerStep#{number}"
        event = {"ph": "X", "name": name, "cat": "step", "ts": began, "dur": now - began}
        self._tracer.add_raw(event)


def _threads_left_out() -> tuple[str, ...]:
    """Name the threads that VizTracer cannot record: up to Python 3.11, those older than it."""
    if sys.version_info >= (3, 12) or not (others := threads_of_others()):
        return ()
    names = sorted(thread.name for thread in others)
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    text = f"threads that began before the window are left out before Python 3.12: {some}"
    return (text,)


def _other_profiler() -> str | None:
    """Return the profiler that already traces here; a second one would replace it."""
    if threading.getprofile() is not None:
        return "threading.setprofile"
    if sys.version_info >= (3, 12):
        return sys.monitoring.get_tool(sys.monitoring.PROFILER_ID)
    return None if sys.getprofile() is None else "sys.setprofile"


def _tail(path: Path) -> bytes:
    """Return the last bytes of a file."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 100))
        return file.read()


def _is_recording(tracer: Any) -> bool:
    """Return whether VizTracer still records; once it has stopped it ignores wrong arguments."""
    try:
        tracer.add_instant()
    except TypeError:
        return True
    return False


class ProfilerId:
    """Wraps ``sys.monitoring.use_tool_id`` while a window has the profiler's tool id."""

    def __init__(self) -> None:
        self._before: Any = None
        self._installed: Any = None

    def release_on_request(self, give_back: Callable[[], object]) -> None:
        """Release the id as soon as another profiler requests it.

        Args:
            give_back: Releases it, at once.
        """
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            return
        before = monitoring.use_tool_id

        @functools.wraps(before)
        def use_tool_id(tool: Any, name: Any) -> Any:
            if tool == monitoring.PROFILER_ID and self._installed is use_tool_id:
                give_back()
            return before(tool, name)

        self._before, self._installed = before, use_tool_id
        monitoring.use_tool_id = use_tool_id

    def end(self) -> None:
        """Remove the wrapper, unless another one was put over it since."""
        put, self._installed = self._installed, None
        monitoring: Any = getattr(sys, "monitoring", None)
        if put and monitoring.use_tool_id is put:
            monitoring.use_tool_id = self._before


def start_tracing(tracer: Any) -> None:
    """Start tracing on this thread and on threads that begin from now on."""
    _c_methods(tracer).start()
    if sys.version_info < (3, 12):
        threading.setprofile(tracer.threadtracefunc)  # VizTracer does this the first time only


def stop_tracing(tracer: Any) -> None:
    """Stop tracing; keep a profile function that the script has set since."""
    if sys.version_info < (3, 12) and sys.getprofile() not in (None, tracer):
        stopping = own_thread(_c_methods(tracer).stop, "dynprof-tracer", None)
        stopping.start()  # VizTracer removes any profile function of the thread that stops it
        stopping.join()
    else:
        _c_methods(tracer).stop(None)
    if threading.getprofile() == tracer.threadtracefunc:
        threading.setprofile(None)


def _c_methods(tracer: Any) -> Any:
    """Return VizTracer's C methods, without its Python code around them."""
    return super(type(tracer), tracer)


class _VizTracerPool:
    """Unused VizTracer objects: each window takes one and gives it back.

    Each object keeps one of the process's 1,024 keys of thread-local storage for ever. VizTracer
    ends a process that has no key left.
    """

    def __init__(self) -> None:
        self._free: list[Any] = []

    def take(self) -> Any:
        """Return an object that records nothing yet."""
        return self._free.pop() if self._free else self._new()

    def _new(self) -> Any:
        from viztracer import VizTracer

        tracer = VizTracer(
            tracer_entries=MAX_EVENTS,
            verbose=0,
            ignore_frozen=True,
            exclude_files=[str(_PACKAGE / name) for name in _OWN_FILES],
            file_info=False,  # keeps the job's source code out of the trace
            register_global=False,
        )
        # The extra reference keeps the object alive for ever. Up to Python 3.11 its destructor
        # uses threading, which is gone at interpreter shutdown; the error surfaces elsewhere.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(tracer))
        stop_tracing(tracer)  # a new object traces the thread that created it
        return tracer

    def give_back(self, tracer: Any) -> None:
        """Clear an object's events and keep it for the next window."""
        tracer.clear()
        self._free.append(tracer)


VIZTRACERS = _VizTracerPool()

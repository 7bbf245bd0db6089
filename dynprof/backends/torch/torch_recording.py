"""A window's recording by ``torch.profiler``, from preparation to file; when it must wait."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from dynprof.backends.base import Load, Saved
from dynprof.backends.call_tracing import (
    ProfileFunctionCheck,
    remove_torch_tracing,
    stop_tracing_calls,
)
from dynprof.backends.torch.closing import (
    COLLECTOR,
    choose_writer,
    record_minimum,
    synchronize_device,
    usable_functions,
)
from dynprof.backends.torch.detached_close import check_written, library
from dynprof.backends.torch.forks import first_use, profiler_change
from dynprof.backends.torch.kineto import KINETO, collect
from dynprof.backends.torch.open_annotations import ANNOTATIONS, UNFINISHED, StepAnnotation
from dynprof.backends.torch.quiescence import wait_for_threads_inside
from dynprof.errors import BackendError
from dynprof.runtime.graph_captures import GRAPH_CAPTURES
from dynprof.runtime.memory import in_use_mb, resident_mb
from dynprof.runtime.threads import is_own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from dynprof.backends.collectors import Collector
    from dynprof.backends.torch.detached_close import DetachedClose, DetachedState
    from dynprof.backends.torch.kineto import KinetoSession, ScriptSession


class TorchRecording:
    """A recording of ``torch.profiler``.

    Torch's profiler owns the events until :meth:`close`. This object then owns them until
    :meth:`save` or :meth:`discard`, whatever fails in between. It frees libkineto's session once
    the events are collected, before they are written to disk.

    Args:
        profiler: Torch's object.
        session: Owner of libkineto's session.
        rank_facts: Metadata that tells readers the rank; None where torch writes it.
        functions: The detached close; None where torch closes.
        closing: Which of the two is used and why, as text.
        collectors: The collectors of the window.
        all_threads: Whether it records all threads; any thread may then close it.

    Attributes:
        is_adopted: Whether a window has taken it over and will end it.
        fallbacks: See :class:`~dynprof.backends.base.Recording`.
    """

    note_step = None
    without: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()

    def __init__(
        self,
        profiler: Any,
        session: KinetoSession | ScriptSession,
        rank_facts: str | None,
        functions: DetachedClose | None,
        closing: str,
        collectors: Collector,
        *,
        all_threads: bool = False,
    ) -> None:
        self.bound_to_thread = not all_threads
        self.is_adopted = False
        self.closing = closing
        self.collectors = collectors
        self._profiler, self._session = profiler, session
        self._traces_calls = bool(profiler.with_stack)
        self._calls = ProfileFunctionCheck(are_recorded=False)
        self._rank_facts = rank_facts
        self._functions = functions
        self._results_exposed = self._unread = False
        self._held: DetachedState | None = None
        self._detached: DetachedState | None = None
        self._collected: Future[None] | None = None
        self._step = StepAnnotation()
        self._events: RecordedEvents | None = None
        self._state, self._number, self._pid = "new", 0, os.getpid()

    def prepare(self) -> None:
        """Start torch's profiler, for the warm-up."""
        self._session.prepare(self._profiler.profiler, self)
        self._number = KINETO.prepare_count
        self._state = "prepared"

    @property
    def results(self) -> Any:
        """Torch's own object with the results; None after a detached close."""
        self._results_exposed = True
        return None if self._functions else self._profiler

    @property
    def saves_concurrently(self) -> bool:
        """Whether :meth:`save` runs without the GIL."""
        return bool(self._functions or self._writer())

    def before_another_profiler(self, close_for_other: Callable[[], None]) -> None:
        """Have ``close_for_other`` called before the script's own profiler begins."""
        self._session.close_for_other = close_for_other
        self.is_adopted = True

    def load(self, *, inside_step: bool) -> Load | None:
        """Return the size recorded since the first call."""
        self._events = self._events or RecordedEvents(self._profiler)
        return self._events.load(inside_step=inside_step)

    def blocked_by(self) -> str | None:
        """Wait where closing now would lose a part, or would read an operator half-way."""
        if self in _unstopped and KINETO.is_taken_by_other(self):
            return "the script's own profiler has not ended yet"
        in_backward_too = bool(self._functions) and not self.bound_to_thread
        return why_not_now(in_backward_too=in_backward_too)

    def start(self) -> None:
        """Keep all events from here on."""
        self._check_session()
        self.is_adopted, self._unread = True, not self.bound_to_thread
        self._state = "running"  # also where starting fails half-way: it must be stopped then
        with profiler_change():
            self._session.start(self._profiler.start_trace)
            self._calls = ProfileFunctionCheck(are_recorded=self._traces_calls)
            if self._functions and self.bound_to_thread:
                self._held = self._functions.share()
        ANNOTATIONS.follow()
        if self._rank_facts:
            self._profiler.add_metadata_json("distributedInfo", self._rank_facts)

    def begin_step(self, number: int | None) -> None:
        """Mark a step in the form that TensorBoard and HolisticTraceAnalysis expect."""
        self._check_session()
        self._step.begin(number)

    def close(self) -> None:
        """Stop recording: detach the profiler, or let torch collect its events."""
        self._check_session()
        self._calls.end()
        self._step.end()
        ANNOTATIONS.end()
        if self._functions:
            self.closing += synchronize_device(self._profiler.use_device)
            self._detach(self._functions)
        else:
            self._stop_in_place(self._profiler)

    def save(self, path: Path) -> Saved:
        """Write the Chrome trace."""
        if self._functions:
            self._write(path)
        elif write := self._writer():
            if is_own_thread():
                COLLECTOR.begin(functools.partial(write, path)).result()
            else:  # the script waits, so a thread of low priority would be too slow
                write(path)
        else:
            self._profiler.export_chrome_trace(str(path))
        check_written(path)
        if self._unread:
            UNFINISHED.read(path)
            self._unread = False
        return Saved(cut=self._calls.cut)

    def _writer(self) -> Callable[[Path], None] | None:
        """Return a writer that needs no GIL; None where the script may have written the results."""
        return None if self._results_exposed else choose_writer(self._profiler)

    def abandon(self) -> None:
        """Take libkineto's session from the dead thread; else the process crashes at exit."""
        if os.getpid() != self._pid:
            self._detach_in_child()
            return
        profiler, self._profiler, held, self._held = self._profiler, None, self._held, None
        self._step.abandon()
        with contextlib.ExitStack() as each:
            each.callback(self._session.close, self)
            if self._state == "running" and self._traces_calls:
                stop_tracing_calls()
            if held and self._is_lost:
                KINETO.free_later(held, profiler.profiler)
            elif held:
                self._detached = held
                each.callback(self._drop)
            elif profiler is not None and not self._is_lost:
                self._traces_calls = record_minimum(profiler.profiler)
                self._session.prepare(profiler.profiler, self)
                self._session.start(profiler.profiler._start_trace)
                self._session.stop(self._stop_function(profiler))
            ANNOTATIONS.end()

    def _detach_in_child(self) -> None:
        """Detach the profiler from the child's thread where that needs no collecting."""
        remove_torch_tracing()
        with contextlib.suppress(BackendError):
            if self._state == "running" and self.bound_to_thread:
                (self._functions or usable_functions()).detach()

    def discard(self) -> None:
        """Stop torch's profiler, even one that was only prepared, and drop its events."""
        profiler, self._profiler = self._profiler, None
        state, self._state = self._state, "stopped"
        with contextlib.ExitStack() as each:  # runs the last first, even if others fail
            if self._unread:
                each.callback(UNFINISHED.assume_all_threads)
            if was_on := state not in ("new", "stopped"):
                each.callback(self._session.close, self)
            each.callback(self._drop)
            if was_on and self._is_lost:
                if self not in _unstopped:  # else another recording owns them by now
                    each.callback(ANNOTATIONS.end)
                each.callback(self._stop_unread, profiler, state)
            elif was_on:
                each.callback(self._stop_unread, profiler, state)
                each.callback(self._step.end)
                each.callback(ANNOTATIONS.end)

    def _stop_unread(self, profiler: Any, state: str) -> None:
        if self._is_lost:
            self._end_lost(profiler, running=state == "running")
        elif state == "running" and (functions := self._functions or _usable_functions(profiler)):
            self._detach(functions, keep=False)
        else:
            if state == "prepared":  # torch can only disable an enabled profiler
                self._traces_calls = record_minimum(profiler.profiler)
                with profiler_change():
                    self._session.start(profiler.start_trace)
            self._stop_in_place(profiler)

    def _stop_in_place(self, profiler: Any) -> None:
        """Have torch collect the events, on this thread."""
        with profiler_change():
            self._state = "stopped"
            self._session.stop(self._stop_function(profiler))

    def _stop_function(self, profiler: Any) -> Callable[[], None]:
        """Return a function that has torch end the recording, now or later."""
        end = functools.partial(end_in_place, profiler, traces_calls=self._traces_calls)
        return functools.partial(end, all_threads=not self.bound_to_thread)

    def _detach_state(self, functions: DetachedClose, *, at_once: bool = False) -> DetachedState:
        if self._traces_calls:
            stop_tracing_calls()
        bound = self.bound_to_thread
        taken = functions.detach() if bound else functions.detach_all(at_once=at_once)
        held, self._held = self._held, None
        if held:
            held.release()
        return taken

    def _detach(self, functions: DetachedClose, *, keep: bool = True) -> None:
        """Detach the state; another thread collects the events, or drops them."""
        with profiler_change():
            self._detached = self._detach_state(functions)
        self._state = "stopped"
        sys.modules["torch.autograd.profiler"]._run_on_profiler_stop()
        self._collected = self._start_collecting(self._detached, keep=keep)

    def _start_collecting(self, taken: DetachedState, *, keep: bool = True) -> Future[None]:
        self._session.hand_over(taken)
        action = functools.partial(first_use, "collect", self._profiler, taken.collect)
        action = action if keep else functools.partial(KINETO.discard_uncollected, taken)
        return COLLECTOR.begin(functools.partial(collect, action, KINETO.collected, taken))

    def _write(self, path: Path) -> None:
        if self._detached is None or self._collected is None:
            raise BackendError("the recording was not stopped")
        self._collected.result()
        action = functools.partial(self._detached.write, path)
        action = functools.partial(first_use, "write", self._profiler, action)
        COLLECTOR.begin(action).result()

    def _drop(self) -> None:
        """Have the events freed, if there are any, once they are collected."""
        taken, self._detached = self._detached, None
        if taken and self._collected is None:  # something failed right after the detach
            self._start_collecting(taken, keep=False)
        if taken:
            COLLECTOR.begin(taken.drop)

    def _end_lost(self, profiler: Any, *, running: bool) -> None:
        """End a recording that lost the session, on the thread that it is bound to."""
        if running and self._functions:
            taken = self._detach_state(self._functions, at_once=True)
            self._step.end()
            KINETO.free_later(taken, profiler.profiler)
        elif running:
            self._step.abandon()
            _unstopped.discard(self)
            if not KINETO.try_end(profiler.profiler, self._stop_function(profiler), self):
                self._profiler, self._state = profiler, "running"  # a later discard tries again
                _unstopped.add(self)

    @property
    def _is_lost(self) -> bool:
        """Whether another profiler took the session; touching it would crash."""
        return self._session.lost or KINETO.prepare_count != self._number

    def _check_session(self) -> None:
        """Raise if the script's own profiler took the session."""
        if self._is_lost:
            text = "the script started a torch.profiler of its own in the window"
            raise BackendError(f"{text}; what the window recorded is lost")


def _usable_functions(profiler: Any) -> DetachedClose | None:
    """Return the functions, even where the recording closes inline; None on a device."""
    with contextlib.suppress(BackendError):
        return None if profiler.use_device else usable_functions()
    return None


_unstopped: set[TorchRecording] = set()
"""Recordings that could not be ended yet; torch still needs their objects."""


def in_backward() -> bool:
    """Return whether this thread is in a backward pass.

    At its end autograd restores the profiler state that the thread had before the pass.
    """
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def why_not_now(*, in_backward_too: bool) -> str | None:
    """Return why a window can neither open nor close now; None where it can.

    Args:
        in_backward_too: Whether it may do so inside a backward pass.
    """
    import torch

    if not in_backward_too and in_backward():
        return "step() was called inside a backward pass"
    if reason := GRAPH_CAPTURES.under_way():
        return reason
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return None


def follow_graph_captures() -> None:
    """Follow all graph captures through torch from now on."""
    import torch

    GRAPH_CAPTURES.follow(torch.cuda.CUDAGraph, "a CUDA graph")
    if graphs := getattr(torch.xpu, "XPUGraph", None):
        GRAPH_CAPTURES.follow(graphs, "an XPU graph")


def end_in_place(profiler: Any, *, all_threads: bool, traces_calls: bool) -> None:
    """Have torch end a profiler once no other thread uses the memory that torch frees.

    Args:
        profiler: A ``torch.profiler.profile`` that is running.
        all_threads: Whether it records the operators of all threads.
        traces_calls: Whether it traces Python calls, which it does on all threads.
    """
    if traces_calls:
        stop_tracing_calls()
    if all_threads:
        with contextlib.suppress(BackendError):  # else torch ends it in its own way
            usable_functions().end_for_all_threads()
    elif traces_calls:
        wait_for_threads_inside()
    profiler.stop_trace()


_MB = 1e6
"""Bytes of a MB."""
_BLOCK = 512
"""Operators in a block of torch's recorder, as its symbol says."""
_BLOCKS = (
    "_ZZN5torch8profiler4impl19ThreadLocalSubqueue14TorchOpStorage"
    "10EventBlockINS1_21KinetoObserverContext5EventELm512EEC4EvE8counter_"
)
"""Symbol of the process's counter of operator blocks: the same name from torch 1.13 to 2.15."""
_OPERATOR_BYTES = {False: 226.0, True: 516.0}
"""Bytes of an operator while recording, without and with the shapes of its inputs."""
_CALL_BYTES = 24.6
"""Bytes of a Python call while recording."""
_ONCE_BYTES = 250_000.0
"""Bytes that torch, Python and dynprof allocate once in a window's first steps: 0.1 to 0.5 MB."""
_CALLS_A_SECOND = 1e7
"""Most calls an interpreter records in a second: growth beyond them is the training's."""
_OPERATOR_EVENTS = {False: 1.2, True: 1.6}
"""Events in the trace per operator, without and with memory: arrows to the backward pass, and
allocations."""
_OPERATOR_SAVING = {False: 1_600.0, True: 3_500.0}
"""Bytes of an operator while its events are collected, without and with shapes."""
_CALL_SAVING = 1_480.0
"""Bytes of a Python call while its events are collected."""
_ALLOCATIONS_SAVING = 1_300.0
"""Bytes of an operator's allocations while they are collected."""


class RecordedEvents:
    """The events of one recording, from its start on.

    Args:
        profiler: A ``torch.profiler.profile`` that has just begun to record.
    """

    def __init__(self, profiler: Any) -> None:
        self._shapes, self._memory = bool(profiler.record_shapes), bool(profiler.profile_memory)
        self._blocks, self._calls = _blocks(), 0.0
        self._began_s = time.perf_counter()
        self._first_block = self._blocks.value if self._blocks else 0
        self._traces_calls = bool(profiler.with_stack) and self._blocks is not None
        self._in_use_mb = in_use_mb() if self._traces_calls else None
        self._resident_mb = resident_mb() if self._traces_calls else 0.0

    def load(self, *, inside_step: bool) -> Load | None:
        """Return the size so far; None where this build of torch has no block counter.

        Args:
            inside_step: Leave out the running step's calls: its tensors take memory as well.
        """
        if self._blocks is None:
            return None
        operators = (self._blocks.value - self._first_block) * _BLOCK
        if self._traces_calls and not inside_step:
            self._calls = self._estimated_calls(operators)
        saving = operators * _OPERATOR_SAVING[self._shapes] + self._calls * _CALL_SAVING
        saving += operators * _ALLOCATIONS_SAVING * self._memory
        events = operators * _OPERATOR_EVENTS[self._memory] + self._calls
        return Load(round(events), saving / _MB)

    def _estimated_calls(self, operators: int) -> float:
        rest = self._grown_mb(operators) * _MB - operators * _OPERATOR_BYTES[self._shapes]
        rest -= _ONCE_BYTES
        most = _CALLS_A_SECOND * (time.perf_counter() - self._began_s)
        return min(most, max(0.0, rest / _CALL_BYTES))

    def _grown_mb(self, operators: int) -> float:
        """Return the growth of allocated memory; of resident memory where that is unknown.

        It is unknown where reading it takes too long, or where another allocator replaces glibc's.
        """
        now_mb = in_use_mb()
        if now_mb is None or self._in_use_mb is None or (operators and now_mb == self._in_use_mb):
            return resident_mb() - self._resident_mb
        return now_mb - self._in_use_mb


def why_not_counted() -> str:
    """Return why events cannot be counted here; empty where they can."""
    return "" if _blocks() is not None else "this build of torch does not number its events"


@functools.cache
def _blocks() -> Any:
    try:
        return ctypes.c_uint64.in_dll(ctypes.CDLL(str(library())), _BLOCKS)
    except (OSError, ValueError):
        return None

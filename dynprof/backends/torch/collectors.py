"""What is recorded along with torch's profiler: operators' arguments, memory, marks on streams."""

from __future__ import annotations

import functools
import pickle
import sys
import threading
from typing import TYPE_CHECKING, Any

from dynprof.backends.collectors import Collector, Unavailable
from dynprof.backends.torch.features import is_used
from dynprof.backends.torch.open_annotations import hidden_from_modes
from dynprof.backends.torch.quiescence import wait_for_threads_inside
from dynprof.runtime.safe_write import atomic_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dynprof.runtime.safe_write import PrivateFolder

MAX_ENTRIES = 1_000_000
"""Most allocations and releases kept; the oldest are dropped first."""
LABEL = "dynprof: device mark"
"""Name of the host range around each mark, by which the analysis recognises it."""
_MIN_HANDLE = 4096
"""Smallest handle that is a pointer; CUDA also uses 1 and 2, for two streams of each device."""
_TRACE_NAME = "execution_trace.json"
_CONFLICT = "the script has an ExecutionTraceObserver of its own, and a process has only one"


class OperatorArguments(Collector):
    """Torch's execution trace: every operator with its arguments, as replay tools read it.

    A process can have one such observer; a second crashes torch. So where the script has one, this
    records nothing. Where the script registers one during the window, this ends first. Torch frees
    the observer at its unregistration, even while a thread writes. So that waits, on the saving
    thread, until all other threads have left the observer.

    Args:
        scratch: A folder for the file, which torch writes while it records.
    """

    def __init__(self, scratch: PrivateFolder) -> None:
        from torch.profiler import ExecutionTraceObserver

        for stopped in tuple(_STILL_REGISTERED):
            stopped.end()
        self._scratch, self._path = scratch, scratch.path / _TRACE_NAME
        self._ending = threading.RLock()
        self._observer = ExecutionTraceObserver()
        self._observer.register_callback(str(self._path))
        self._lost = ""
        if self._observer.is_registered and not self._path.exists():  # torch only claims it is
            self._observer._registered = False
            self._lost = f"it recorded nothing: {_CONFLICT}"
        self._unwrap = _nothing if self._lost else self._wrapped()

    def start(self) -> None:
        """Start writing."""
        self._observer.start()

    def stop(self) -> None:
        """Stop writing."""
        with self._ending:
            if self._observer.is_registered:
                self._observer.stop()
                _STILL_REGISTERED.add(self)

    def end(self) -> None:
        """Close the file, once no thread writes to it any more."""
        self.stop()
        with self._ending:
            self._unwrap()
            if self._observer.is_registered:
                wait_for_threads_inside()
                self._observer.unregister_callback()
            _STILL_REGISTERED.discard(self)

    def _wrapped(self) -> Callable[[], None]:
        """Wrap torch's function that registers an observer; return the function that unwraps it."""
        module = sys.modules["torch.profiler.profiler"]
        register = module._add_execution_trace_observer

        @functools.wraps(register)
        def close_for_other(path: str) -> Any:
            if self not in _STILL_REGISTERED:
                self._lost = f"it ends early: {_CONFLICT}"
            self.end()
            return register(path)

        def unwrap() -> None:
            if module._add_execution_trace_observer is close_for_other:
                module._add_execution_trace_observer = register  # type: ignore[attr-defined]

        module._add_execution_trace_observer = close_for_other  # type: ignore[attr-defined]
        return unwrap

    def abandon(self) -> None:
        """Stop writing to the parent's file."""
        self._observer.stop()

    def save(self, stem: Path) -> tuple[str, ...]:
        """Move the file to its final place."""
        self.end()
        try:
            self._scratch.move_out(_TRACE_NAME, stem.with_name(f"{stem.name}.execution_trace.json"))
        except FileNotFoundError:
            return (f"record_op_args: {self._lost or 'torch wrote nothing'}",)
        finally:
            self._scratch.remove()
        return (f"record_op_args: {self._lost}",) if self._lost else ()

    def discard(self) -> None:
        """Delete the file."""
        self.end()
        self._scratch.remove()


_STILL_REGISTERED: set[OperatorArguments] = set()
"""Stopped collectors whose observer torch still has registered."""


def _nothing() -> None:
    """Do nothing."""


class ScriptObserver(Collector):
    """The script's own observer, started and stopped with the recording.

    Args:
        observer: Has ``start()`` and ``stop()``, like torch's ``ExecutionTraceObserver``.
    """

    def __init__(self, observer: Any) -> None:
        self._observer = observer
        self._running = False

    def start(self) -> None:
        """Start it."""
        self._running = True
        self._observer.start()

    def stop(self) -> None:
        """Stop it, if it was started."""
        if self._running:
            self._running = False
            self._observer.stop()


class MemoryHistory(Collector):
    """Records the history of a caching allocator, in the format of torch's memory viewer.

    Args:
        memory: ``torch.cuda.memory`` or its equivalent.
        is_recording: Whether the script records a history itself, which is left alone.
    """

    def __init__(self, memory: Any, *, is_recording: bool) -> None:
        self._memory, self._script_records = memory, is_recording
        self._running = False
        self._snapshot: Any = None

    @classmethod
    def of_devices(cls, activities: tuple[str, ...]) -> Iterator[Collector]:
        """Yield one for each recorded device; a device without a history only reports that."""
        import torch

        for activity in (one for one in activities if one != "CPU"):
            name = activity.lower()
            memory = getattr(getattr(torch, name, None), "memory", None)
            if not hasattr(memory, "_record_memory_history"):
                yield Unavailable(
                    f"memory_snapshot: {activity} keeps no history of its memory here"
                )
            elif not is_used(torch, activity):
                # torch 2.11 crashes if asked before its allocator exists
                yield Unavailable(f"memory_snapshot: this process has not used {activity} yet")
            else:
                is_enabled = getattr(torch._C, f"_{name}_isHistoryEnabled", None)
                yield cls(memory, is_recording=bool(is_enabled and is_enabled()))

    def start(self) -> None:
        """Have the allocator keep a history."""
        if not self._script_records:
            self._memory._record_memory_history(stacks="python", max_entries=MAX_ENTRIES)
        self._running = True

    def stop(self) -> None:
        """Read the history, which is lost when it is switched off."""
        if self._running:
            self._running = False
            self._snapshot = self._memory._snapshot()
            if not self._script_records:
                self._memory._record_memory_history(enabled=None)

    def discard(self) -> None:
        """Switch the history off."""
        if self._running and not self._script_records:
            self._memory._record_memory_history(enabled=None)
        self._running, self._snapshot = False, None

    def abandon(self) -> None:
        """Do nothing: a device does not survive a fork."""

    def save(self, stem: Path) -> tuple[str, ...]:
        """Write the snapshot, pickled for the viewer."""
        snapshot, self._snapshot = self._snapshot, None
        with atomic_file(self.path(stem)) as file:
            pickle.dump(snapshot, file)
        return ()

    @staticmethod
    def path(stem: Path) -> Path:
        """Return the file of :meth:`save`."""
        return stem.with_name(f"{stem.name}.memory_snapshot.pickle")


def draw(message: str, buffer: Callable[[], Any]) -> None:
    """Put a minimal kernel on the current stream, under a name.

    Kineto gives the device work of a ``record_function`` range the range's name.

    Args:
        message: The name.
        buffer: Returns a tensor to write to; creates it at the first call.
    """
    from torch.autograd.profiler import record_function

    with record_function(LABEL):
        written = buffer()
        with record_function(message):
            written.zero_()


class CudaStreams:
    """Marks CUDA streams, as Kineto draws them, without waiting for the device.

    A process has one such object.
    """

    def __init__(self) -> None:
        self._buffers: dict[Any, Any] = {}

    def stream(self, given: object) -> object | None:
        """Return the CUDA stream for a stream object or a CUDA handle; None for others.

        CUDA cannot check whether a handle is valid; the script must pass a valid one.
        """
        import torch

        if isinstance(given, torch.cuda.Stream):
            found: object = given
        elif isinstance(given, torch.Stream):
            found = _of_cuda(given)
        elif isinstance(given, int) and torch.cuda.is_initialized() and _is_handle(given):
            found = torch.cuda.ExternalStream(given)
        else:
            found = None
        return found

    def is_capturing(self, stream: Any) -> bool:
        """Return whether work put on a stream becomes part of a graph."""
        import torch

        with torch.cuda.stream(stream):
            return bool(torch.cuda.is_current_stream_capturing())

    def mark(self, message: str, stream: Any) -> None:
        """Put a mark on a stream, after the work queued so far."""
        import torch

        with hidden_from_modes(), torch.cuda.stream(stream):
            draw(message, functools.partial(self._buffer, stream.device))

    def _buffer(self, device: Any) -> Any:
        import torch

        if device not in self._buffers:
            with torch.inference_mode(False):  # writable in any mode
                self._buffers[device] = torch.zeros(1, device=device)
        return self._buffers[device]


def _of_cuda(stream: Any) -> object:
    """Return a stream of any device as a CUDA stream; None where it is no CUDA stream."""
    import torch

    if stream.device.type != "cuda":
        return None
    return torch.cuda.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=stream.device_type,
    )


def _is_handle(number: int) -> bool:
    named = number in (1, 2) and not isinstance(number, bool)
    return named or number >= _MIN_HANDLE


CUDA_STREAMS = CudaStreams()
"""The process's CUDA streams."""

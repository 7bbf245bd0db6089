"""The arguments of operators, recorded along with torch's profiler."""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from dynprof.backends.collectors import Collector
from dynprof.backends.torch.quiescence import wait_for_threads_inside

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.runtime.output import PrivateFolder

_NAME = "execution_trace.json"
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
        self._scratch, self._path = scratch, scratch.path / _NAME
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
            self._scratch.move_out(_NAME, stem.with_name(f"{stem.name}.execution_trace.json"))
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

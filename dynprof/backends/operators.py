"""The arguments of operators, beside a recording of torch's."""

from __future__ import annotations

import contextlib
import shutil
from typing import TYPE_CHECKING, Any

from dynprof.companions import Companion
from dynprof.leftovers import occupied

if TYPE_CHECKING:
    from pathlib import Path


class OperatorArguments(Companion):
    """Torch's execution trace: every operator with its arguments, as replay tools read it.

    Args:
        scratch: A folder for the file, which torch writes while it records.
    """

    def __init__(self, scratch: Path) -> None:
        from torch.profiler import ExecutionTraceObserver

        self._scratch, self._lock = scratch, contextlib.ExitStack()
        self._lock.enter_context(occupied(scratch))
        self._path = scratch / "execution_trace.json"
        self._observer = ExecutionTraceObserver()
        self._observer.register_callback(str(self._path))

    def start(self) -> None:
        """Begin to write."""
        self._observer.start()

    def stop(self) -> None:
        """Write no more, and close the file."""
        if self._observer.is_registered:
            self._observer.stop()
            self._observer.unregister_callback()

    def leave_child(self) -> None:
        """Write no more into the parent's file."""
        self._observer.stop()

    def save(self, stem: Path) -> tuple[str, ...]:
        """Move the file to where it is kept."""
        try:
            shutil.move(self._path, stem.with_name(f"{stem.name}.execution_trace.json"))
        except FileNotFoundError:
            return ("record_op_args: torch wrote nothing; is another observer of it registered?",)
        finally:
            self._clear()
        return ()

    def discard(self) -> None:
        """Delete the file."""
        self.stop()
        self._clear()

    def _clear(self) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._lock.close()


class ScriptsObserver(Companion):
    """An observer that the script brings: started and stopped with the recording, no more.

    Args:
        observer: Has ``start()`` and ``stop()``, as torch's ``ExecutionTraceObserver``.
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

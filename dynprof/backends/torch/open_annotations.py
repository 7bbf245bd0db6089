"""The script's ``record_function`` ranges that are open when a recording ends.

Each keeps a pointer to its event in the recording. Once that is collected the event is gone; but
when such a range ends inside a later recording, as one around an epoch does, torch writes the
time into it all the same. So the ranges of a recording are followed, and those still open are
ended with it; when the script ends them, or a future does, nothing is left to do.

Ranges that Python does not see, of C++ alone or of ``_RecordFunctionFast``, cannot be followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from typing import TYPE_CHECKING, Any

from dynprof.marks.record_functions import RECORD_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


class OpenAnnotations:
    """Follows the ranges of the recording that is running; the process needs one."""

    def __init__(self) -> None:
        self._following, self._is_ending = False, False
        self._ending = threading.RLock()
        self._open: dict[int, Any] = {}

    def follow(self) -> None:
        """Follow the ranges that begin from now on."""
        RECORD_FUNCTIONS.add(self)
        self._following = True

    def end(self) -> None:
        """End those that are open, and follow no more; also twice."""
        self._following = False
        with self._ending:
            self._is_ending = True
            while self._open:
                _, record = self._open.popitem()
                _end(record)
            self._is_ending = False
        RECORD_FUNCTIONS.remove(self)

    def forget(self) -> None:
        """Begin anew in a forked child, where nothing is recorded."""
        self._following, self._is_ending, self._ending = False, False, threading.RLock()
        self._open.clear()

    def on_enter(self, annotation: Any) -> None:
        """Keep one that has begun."""
        if self._following:
            self._open[id(annotation.record)] = annotation.record

    def on_exit(self, annotation: Any) -> None:
        """Let one go that ends; it may be about to be ended here, which two threads must not do."""
        if not annotation.run_callbacks_on_exit:
            return  # it ends with a future, whenever that comes
        if self._open.pop(id(annotation.record), None) is None and self._is_ending:
            with self._ending:
                pass


@contextlib.contextmanager
def hidden_from_modes() -> Iterator[None]:
    """Keep torch's modes of the script, which count or forbid operators, from seeing the body."""
    import torch

    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


class StepAnnotation:
    """The annotation of the step that is running, in the form that readers look for."""

    def __init__(self) -> None:
        self._open: Any = None

    def begin(self, number: int | None) -> None:
        """End that of the step before, and begin one; None begins none."""
        from torch.autograd.profiler import record_function

        self.end()
        if number is not None:
            step = record_function(f"ProfilerStep#{number}")
            with hidden_from_modes():
                step.__enter__()
            self._open = step

    def end(self) -> None:
        """End the one that is open, if any."""
        step, self._open = self._open, None
        if step is not None:
            with hidden_from_modes():
                step.__exit__(None, None, None)

    def abandon(self) -> None:
        """Never end the open one: it would write into a session that is gone."""
        step, self._open = self._open, None
        if step is not None:
            _leak(step)


def _leak(annotation: Any) -> None:
    """Keep its destructor from ending it, which writes where its event was."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(annotation))


def _end(record: Any) -> None:
    import torch

    with hidden_from_modes():
        torch.ops.profiler._record_function_exit._RecordFunction(record)


ANNOTATIONS = OpenAnnotations()
"""The process has one."""

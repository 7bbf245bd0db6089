"""The script's ``record_function`` ranges that are open when a recording ends.

Each range keeps a pointer to its event in the recording. The event is gone once the recording is
collected. But if the range ends inside a later recording, as a range around an epoch does, torch
still writes the time to the event. So dynprof follows a recording's ranges and ends the open ones
with it. When the script or a future ends such a range later, nothing is left to do.

Ranges that Python does not see, from C++ or ``_RecordFunctionFast``, cannot be followed.
"""

from __future__ import annotations

import contextlib
import ctypes
import re
import threading
from typing import TYPE_CHECKING, Any

from dynprof.backends.torch.quiescence import native_thread_ids
from dynprof.marks.record_functions import RECORD_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_UNFINISHED = b'"finished": false'
_THREADS = re.compile(rb'"tid": (\d+)|"finished": (false)')
_FROM_TRACE = "an operator that began in an earlier window may not have ended"
_ASSUMED = "an operator of an earlier window, whose trace was lost, may not have ended"
_CHUNK, _EVENT = 1 << 18, 1 << 16
"""Bytes that are read at a time, and bytes of an event at most."""


class Unfinished:
    """The threads that may still be inside such an operator."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._is_known = True

    def threads(self) -> set[int]:
        """Return the threads that have not ended."""
        if self._threads:  # called at each step while a request waits
            self._threads &= native_thread_ids()
        self._is_known = self._is_known or not self._threads
        return set(self._threads)

    @property
    def why(self) -> str:
        """The reason why threads are left out, as text to put before their ids."""
        return _FROM_TRACE if self._is_known else _ASSUMED

    def read(self, trace: Path) -> None:
        """Read from torch's raw trace which threads were inside an operator at its end."""
        with trace.open("rb") as file:
            before = b""
            while chunk := file.read(_CHUNK):
                text = before + chunk
                if _UNFINISHED in text:
                    self._threads |= _threads_in(text)
                before = text[-_EVENT:]  # an event that began in the last chunk

    def assume_all_threads(self) -> None:
        """Assume that every thread is inside an operator: the recording was not read."""
        self._is_known = False
        self._threads |= native_thread_ids()


def _threads_in(text: bytes) -> set[int]:
    """Return the threads of unfinished events; in an event, ``tid`` comes before ``finished``."""
    found, thread = set(), 0
    for match in _THREADS.finditer(text):
        if match[1]:
            thread = int(match[1])
        else:
            found.add(thread)
    return found - {0}


UNFINISHED = Unfinished()
"""The unfinished operators of this process."""


class OpenAnnotations:
    """Follows the ranges of the running recording; a process has one such object."""

    def __init__(self) -> None:
        self._following, self._is_ending = False, False
        self._ending = threading.RLock()
        self._open: dict[int, Any] = {}

    def follow(self) -> None:
        """Follow the ranges that begin from now on."""
        RECORD_FUNCTIONS.add(self)
        self._following = True

    def end(self) -> None:
        """End the open ranges and stop following; may be called twice."""
        self._following = False
        with self._ending:
            self._is_ending = True
            while self._open:
                _, record = self._open.popitem()
                _end(record)
            self._is_ending = False
        RECORD_FUNCTIONS.remove(self)

    def reset(self) -> None:
        """Reset in a forked child, where nothing is recorded."""
        self._following, self._is_ending, self._ending = False, False, threading.RLock()
        self._open.clear()

    def on_enter(self, annotation: Any) -> None:
        """Keep a range that has begun."""
        if self._following:
            self._open[id(annotation.record)] = annotation.record

    def on_exit(self, annotation: Any) -> None:
        """Forget a range that ends; waits where :meth:`end` is ending it on another thread."""
        if not annotation.run_callbacks_on_exit:
            return  # it ends with a future, later
        if self._open.pop(id(annotation.record), None) is None and self._is_ending:
            with self._ending:
                pass


@contextlib.contextmanager
def hidden_from_modes() -> Iterator[None]:
    """Hide the body from the script's torch modes, which may count or forbid operators."""
    import torch

    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


class StepAnnotation:
    """The annotation of the running step, in the form that trace readers expect."""

    def __init__(self) -> None:
        self._open: Any = None

    def begin(self, number: int | None) -> None:
        """End the previous step's annotation and begin one; None begins none."""
        from torch.autograd.profiler import record_function

        self.end()
        if number is not None:
            step = record_function(f"ProfilerStep#{number}")
            with hidden_from_modes():
                step.__enter__()
            self._open = step

    def end(self) -> None:
        """End the open annotation, if any."""
        step, self._open = self._open, None
        if step is not None:
            with hidden_from_modes():
                step.__exit__(None, None, None)

    def abandon(self) -> None:
        """Never end the open annotation: it would write to a session that is gone."""
        step, self._open = self._open, None
        if step is not None:
            _leak(step)


def _leak(annotation: Any) -> None:
    """Keep an annotation alive for ever: its destructor would write to freed memory."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(annotation))


def _end(record: Any) -> None:
    import torch

    with hidden_from_modes():
        torch.ops.profiler._record_function_exit._RecordFunction(record)


ANNOTATIONS = OpenAnnotations()
"""The process's followed annotations."""

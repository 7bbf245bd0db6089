"""The script's ``record_function`` ranges that are open when a recording ends.

Each keeps a pointer to its event in the recording. Once that is collected the event is gone; but
when such a range ends inside a later recording, as one around an epoch does, torch writes the
time into it all the same. So the ranges of a recording are followed, and those still open are
ended with it; when the script ends them, nothing is left to do.

Ranges that Python does not see, of C++ alone or of ``_RecordFunctionFast``, cannot be followed.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class OpenAnnotations:
    """Follows the ranges of the recording that is running; the process needs one."""

    def __init__(self) -> None:
        self._following, self._is_ending = False, False
        self._ending = threading.RLock()  # a signal handler may leave a range meanwhile
        self._open: dict[int, Any] = {}
        self._unwrap: Callable[[], None] = _nothing

    def follow(self) -> None:
        """Follow the ranges that begin from now on."""
        self._unwrap()
        self._unwrap = self._wrapped()
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
        self._unwrap()
        self._unwrap = _nothing

    def forget(self) -> None:
        """Begin anew in a forked child, where nothing is recorded."""
        self._following, self._is_ending, self._ending = False, False, threading.RLock()
        self._open.clear()

    def _wrapped(self) -> Callable[[], None]:
        """Wrap the two methods of ``record_function``; return what undoes it."""
        from torch.autograd.profiler import record_function

        enter, leave = record_function.__enter__, record_function.__exit__

        @functools.wraps(enter)
        def begin(annotation: Any) -> Any:
            result = enter(annotation)
            if self._following:
                self._open[id(annotation.record)] = annotation.record
            return result

        @functools.wraps(leave)
        def end(annotation: Any, *reason: Any) -> Any:
            if self._open.pop(id(annotation.record), None) is None and self._is_ending:
                with self._ending:  # it may be about to be ended, which two threads must not do
                    pass
            return leave(annotation, *reason)

        def unwrap() -> None:
            if record_function.__enter__ is begin and record_function.__exit__ is end:
                record_function.__enter__, record_function.__exit__ = enter, leave

        record_function.__enter__, record_function.__exit__ = begin, end
        return unwrap


def _nothing() -> None:
    """Undo nothing."""


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """Keep torch's modes of the script, which count or forbid operators, from seeing the body."""
    import torch

    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def _end(record: Any) -> None:
    import torch

    with unseen():
        torch.ops.profiler._record_function_exit._RecordFunction(record)


ANNOTATIONS = OpenAnnotations()
"""The process has one."""

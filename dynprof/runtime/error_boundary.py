"""The error boundary between dynprof and the training job."""

from __future__ import annotations

import contextlib
import errno
import itertools
import signal
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Protocol

from dynprof.errors import DynprofError, LostWindowError, describe
from dynprof.runtime.standard_streams import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a full disk; they need no traceback."""
_TAKES_ANY_NUMBER = 0x04
"""A flag of code objects. It is copied from :mod:`inspect`, whose import takes too long."""


class Notes(Protocol):
    """The part of a journal that a boundary needs."""

    def set_status(self, *, last_error: str) -> None:
        """Keep the error for the status."""

    def error(self, text: str) -> None:
        """Log a text."""


class StderrNotes:
    """A replacement for the journal that prints to standard error."""

    def set_status(self, *, last_error: str) -> None:
        """Do nothing: there is no status."""

    def error(self, text: str) -> None:
        """Print a text."""
        say(text)


class ErrorBoundary:
    """Runs actions that must not raise; all threads and calls of dynprof go through it.

    Args:
        journal: Logs failures.
    """

    def __init__(self, journal: Notes) -> None:
        self._journal = journal
        self._last: dict[str, str] = {}

    def attempt(self, doing: str, action: Callable[[], object]) -> Exception | None:
        """Run ``action``; log and return the exception that it raised.

        Args:
            doing: What is attempted, for the log: "saving the capture".
            action: The function to run.
        """
        try:
            action()
        except Exception as error:
            # The broad except of the package: a failure behind this boundary costs a capture,
            # never the job, and the log has its traceback. Ctrl-C, sys.exit and exceptions of the
            # training loop pass: dynprof does not handle them.
            if came_from_a_signal(error):
                raise
            self._note(doing, error)
            return error
        self._last.pop(doing, None)
        return None

    def _note(self, doing: str, error: Exception) -> None:
        text = f"{doing} failed: {describe(error)}"
        self._journal.set_status(last_error=text)
        if text != self._last.get(doing):  # an error that repeats every second is logged once
            self._journal.error(_with_traceback(text, error))
        self._last[doing] = text

    def attempt_or(
        self, doing: str, action: Callable[[], object], on_failure: Callable[[Exception], object]
    ) -> None:
        """Run ``action``, and ``on_failure`` if it fails or is interrupted.

        Ctrl-C passes, and so do exceptions of the script's signal handlers. The script may catch
        them and continue, so nothing half done may remain.
        """
        error: Exception | None = LostWindowError(f"{doing} was interrupted")
        try:
            error = self.attempt(doing, action)
        finally:
            if failed := error:
                self.attempt(f"giving up {doing}", lambda: on_failure(failed))


def _with_traceback(text: str, error: Exception) -> str:
    """Return the text, with a traceback if the error is unexpected."""
    is_full = isinstance(error, OSError) and error.errno in _FULL
    if is_full or isinstance(error, DynprofError):
        return text
    return "\n".join([text, *"".join(traceback.format_exception(error)).rstrip().splitlines()])


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process during the body, so that a loading command prints no traceback.

    A SIGINT handler other than Python's own stays.
    """
    is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if is_pythons:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def came_from_a_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised it; Python runs handlers between any two lines.

    A handler is known by being installed, or by its arguments, a number and a frame. It may have
    restored the default before it raised, or deleted arguments that it does not use.
    """
    installed = {
        getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()
    }
    tail = error.__traceback__ and error.__traceback__.tb_next  # the first frame is the caller's
    while tail:
        if tail.tb_frame.f_code in installed or _is_handler_call(tail.tb_frame):
            return True
        tail = tail.tb_next
    return False


def _is_handler_call(frame: FrameType) -> bool:
    """Return whether the function was called with a number followed by a frame."""
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & _TAKES_ANY_NUMBER)
    given: list[object] = []
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        given += value if isinstance(value, tuple) else [value]
    return any(
        isinstance(number, int) and isinstance(found, FrameType)
        for number, found in itertools.pairwise(given)
    )

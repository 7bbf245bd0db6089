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
from dynprof.runtime.warnings_to_script import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that say all there is to say."""


class Notes(Protocol):
    """What a boundary needs of a journal."""

    def set_status(self, *, last_error: str) -> None:
        """Keep it for the status."""

    def error(self, text: str) -> None:
        """Write it down."""


class StderrNotes:
    """What takes a journal's place where there is none: the process's standard error."""

    def set_status(self, *, last_error: str) -> None:
        """Forget it: there is no status."""

    def error(self, text: str) -> None:
        """Print it."""
        say(text)


class ErrorBoundary:
    """Runs what must not fail outwards; all of dynprof's threads and calls come through here.

    Args:
        journal: Where failures are written down.
    """

    def __init__(self, journal: Notes) -> None:
        self._journal = journal
        self._last: dict[str, str] = {}

    def attempt(self, doing: str, action: Callable[[], object]) -> Exception | None:
        """Run ``action``; return the exception that it ended with, after writing it down.

        Args:
            doing: What is attempted, for the log: "saving the capture".
            action: What to run.
        """
        try:
            action()
        except Exception as error:
            # The broad except of the package: whatever fails behind this boundary costs a
            # capture, never the job, and its traceback stands in the log. Ctrl-C, sys.exit and
            # a training loop's own exceptions are none of our business and pass.
            if came_from_a_signal(error):
                raise
            self._note(doing, error)
            return error
        self._last.pop(doing, None)
        return None

    def _note(self, doing: str, error: Exception) -> None:
        text = f"{doing} failed: {describe(error)}"
        self._journal.set_status(last_error=text)
        if text != self._last.get(doing):  # what fails once a second must not fill the log
            self._journal.error(_at_length(text, error))
        self._last[doing] = text

    def attempt_or(
        self, doing: str, action: Callable[[], object], amend: Callable[[Exception], object]
    ) -> None:
        """Run ``action``, and ``amend`` where it fails or is interrupted.

        Ctrl-C passes, and what the script's signal handlers raise; but the script may catch it
        and go on, and nothing half done may be left to it.
        """
        error: Exception | None = LostWindowError(f"{doing} was interrupted")
        try:
            error = self.attempt(doing, action)
        finally:
            if failed := error:
                self.attempt(f"giving up {doing}", lambda: amend(failed))


def _at_length(text: str, error: Exception) -> str:
    """Return the text, with the traceback of what nobody foresaw."""
    is_full = isinstance(error, OSError) and error.errno in _FULL
    if is_full or isinstance(error, DynprofError):
        return text
    return "\n".join([text, *"".join(traceback.format_exception(error)).rstrip().splitlines()])


_TAKES_ANY_NUMBER = 0x04
"""A flag of code, as in :mod:`inspect`, which takes as long to import as all the rest."""


@contextlib.contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Have Ctrl-C end the process during the body: a command that is loading prints no traceback.

    A handler of SIGINT that is not Python's own stays.
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
    """Return whether a signal handler raised it, which Python runs between any two lines.

    A handler is known by being installed, or by its arguments, a number and a frame: it may have
    restored the default before it raised, or deleted arguments that it does not use.
    """
    installed = {
        getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()
    }
    tail = error.__traceback__ and error.__traceback__.tb_next  # the first is the caller's
    while tail:
        if tail.tb_frame.f_code in installed or _was_given_a_frame(tail.tb_frame):
            return True
        tail = tail.tb_next
    return False


def _was_given_a_frame(frame: FrameType) -> bool:
    """Return whether it was called with a number and, right after it, a frame."""
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

"""The wall between dynprof and the training job."""

from __future__ import annotations

import errno
import traceback
from typing import TYPE_CHECKING, Protocol

from dynprof.errors import DynprofError, LostWindowError, describe
from dynprof.process.interruptions import came_from_a_signal
from dynprof.process.standard_error import say

if TYPE_CHECKING:
    from collections.abc import Callable

_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that say all there is to say."""


class Notes(Protocol):
    """What a wall needs of a journal."""

    def remember(self, *, last_error: str) -> None:
        """Keep it for the status."""

    def error(self, text: str) -> None:
        """Write it down."""


class StderrNotes:
    """What takes a journal's place where there is none: the process's standard error."""

    def remember(self, *, last_error: str) -> None:
        """Forget it: there is no status."""

    def error(self, text: str) -> None:
        """Print it."""
        say(text)


class Wall:
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
            # The broad except of the package: whatever fails behind this wall costs a
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
        self._journal.remember(last_error=text)
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

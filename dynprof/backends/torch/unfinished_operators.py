"""Operators that began in a recording of all threads and had not ended when it was over.

At its end torch writes the time into the event of the operator, which is gone by then, if another
recording of all threads is open: without one it does nothing. So while there may be such an
operator, windows record their own thread only.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dynprof.backends.torch.quiescence import native_thread_ids

if TYPE_CHECKING:
    from pathlib import Path

_UNFINISHED = b'"finished": false'
_THREADS = re.compile(rb'"tid": (\d+)|"finished": (false)')
_FROM_TRACE = "an operator that began in an earlier window may not have ended"
_ASSUMED = "an operator of an earlier window, whose trace was lost, may not have ended"
_CHUNK, _EVENT = 1 << 18, 1 << 16


class Unfinished:
    """The threads that may still be in such an operator."""

    def __init__(self) -> None:
        self._threads: set[int] = set()
        self._is_known = True

    def threads(self) -> set[int]:
        """Return those that have not ended."""
        if self._threads:  # asked at each step while a request waits
            self._threads &= native_thread_ids()
        self._is_known = self._is_known or not self._threads
        return set(self._threads)

    @property
    def why(self) -> str:
        """What is to be said of them, before their numbers."""
        return _FROM_TRACE if self._is_known else _ASSUMED

    def read(self, trace: Path) -> None:
        """Learn from a raw trace of torch's which threads were in an operator at its end."""
        with trace.open("rb") as file:
            before = b""
            while chunk := file.read(_CHUNK):
                text = before + chunk
                if _UNFINISHED in text:
                    self._threads |= _threads_in(text)
                before = text[-_EVENT:]  # an event that began in the last chunk

    def assume_all_threads(self) -> None:
        """Note that nobody has read what was recorded: any thread may be in an operator."""
        self._is_known = False
        self._threads |= native_thread_ids()


def _threads_in(text: bytes) -> set[int]:
    """Return the threads of unfinished events; in each the thread stands before that."""
    found, thread = set(), 0
    for match in _THREADS.finditer(text):
        if match[1]:
            thread = int(match[1])
        else:
            found.add(thread)
    return found - {0}


UNFINISHED = Unfinished()
"""Of this process."""

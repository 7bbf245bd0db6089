"""Operators that began in a recording of all threads and had not ended when it was over.

If such an operator ends during another recording of all threads, torch writes the time to the
operator's event, which is gone by then. Without such a recording torch does nothing. So while
such an operator may exist, windows record only their own thread.
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

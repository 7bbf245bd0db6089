"""Which thread is in the loop: one at a time."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

WAIT_S = 60.0
"""For so long a thread waits for another that opens or closes a window; then it goes on."""


class Turns:
    """Lets one thread in at a time, and no thread twice: a signal handler may call in again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal may come right after it was taken
        self._taken = False

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for this thread's turn; give whether it has come."""
        if not self._lock.acquire(timeout=WAIT_S):
            yield False
            return
        try:
            if self._taken:
                yield False
                return
            self._taken = True
            try:
                yield True
            finally:
                self._taken = False
        finally:
            self._lock.release()

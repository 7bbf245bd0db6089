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
        self._lock = threading.Lock()
        self._inside = 0

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for this thread's turn; give whether it has come."""
        me = threading.get_ident()
        if self._inside == me or not self._lock.acquire(timeout=WAIT_S):
            yield False
            return
        self._inside = me
        try:
            yield True
        finally:
            self._inside = 0
            self._lock.release()

"""What one thread at a time may begin, and no signal handler amid that."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Beginning:
    """Lets one thread in at a time, and no thread twice."""

    def __init__(self) -> None:
        self._lock, self._is_taken = threading.RLock(), False

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for other threads; give whether this one may begin, and is not amid that."""
        with self._lock:
            was_taken, self._is_taken = self._is_taken, True
            try:
                yield not was_taken
            finally:
                self._is_taken = was_taken

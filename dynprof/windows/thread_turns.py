"""Which thread is in the loop: one at a time."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from dynprof.process.profile_functions import is_noting_a_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 60.0
"""For so long a thread waits for another that opens or closes a window; then it goes on."""


class Turns:
    """Lets one thread in at a time, and no thread twice: a signal handler may call in again.

    Args:
        first: What each turn begins with.
        last: What it ends with, however it does.
    """

    def __init__(self, first: Callable[[], None], last: Callable[[], None]) -> None:
        self._first, self._last = first, last
        self._lock = threading.RLock()  # a signal may come right after it was taken
        self._taken: threading.Thread | None = None
        self._afterwards: Callable[[], None] | None = None

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for this thread's turn; give whether it has come."""
        if not self._acquire():
            yield False
            return
        try:
            if self._taken:
                yield False
                return
            self._taken = threading.current_thread()
            try:
                self._first()
                try:
                    yield True
                finally:
                    self._last()
            finally:
                self._taken = None
        finally:
            self._lock.release()
            self._do_the_rest()

    def _acquire(self) -> bool:
        """Wait for the lock, but where its owner waits for this thread, as it ends a window."""
        if self._lock.acquire(blocking=False):
            return True
        return not is_noting_a_call() and self._lock.acquire(timeout=WAIT_S)

    @property
    def put_something_off(self) -> bool:
        """Whether something is to be done after the turn that is being taken."""
        return self._afterwards is not None

    def put_off(self, action: Callable[[], None]) -> bool:
        """Have ``action`` done after the turn that this thread is taking; False if it takes none.

        For a signal handler, which comes in the midst of it; done also where that raises.
        """
        if self._taken is not threading.current_thread():
            return False
        self._afterwards = action
        return True

    def _do_the_rest(self) -> None:
        action = self._afterwards
        if action is None or self._taken is threading.current_thread():
            return
        self._afterwards = None
        action()

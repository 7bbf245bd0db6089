"""Which thread is in the loop: one at a time."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from dynprof.runtime.graph_captures import GRAPH_CAPTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 60.0
"""For so long a thread waits for another that opens or closes a window; then it goes on."""


class Turns:
    """Lets one thread in at a time, and no thread twice: a signal handler may call in again.

    No graph capture begins during a turn.

    Args:
        first: What each turn begins with.
        last: What it ends with, however it does.
    """

    def __init__(self, first: Callable[[], None], last: Callable[[], None]) -> None:
        self.first, self.last = first, last
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._afterwards: Callable[[], None] | None = None

    @contextlib.contextmanager
    def take(self) -> Iterator[bool]:
        """Wait for this thread's turn; within a ``with``, which is given whether it has come."""
        if self._is_mine or not self._lock.acquire(timeout=WAIT_S):
            yield False
            return
        self._owner = threading.get_ident()
        try:
            with GRAPH_CAPTURES.block_captures_now():
                self.first()
                yield True
        finally:
            self._end()

    def _end(self) -> None:
        """Let others have theirs, and do what was put off."""
        try:
            self.last()
        finally:
            self._owner = None
            self._lock.release()
            action, self._afterwards = self._afterwards, None
            if action:
                action()

    @property
    def put_something_off(self) -> bool:
        """Whether something is to be done after the turn that is being taken."""
        return self._afterwards is not None

    def put_off(self, action: Callable[[], None]) -> bool:
        """Have ``action`` done after the turn that this thread is taking; False if it takes none.

        For a signal handler, which comes in the midst of it; done also where that raises.
        """
        if not self._is_mine:
            return False
        self._afterwards = action
        return True

    @property
    def _is_mine(self) -> bool:
        return self._owner == threading.get_ident()

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


class WindowLock:
    """Lets one thread in at a time, and no thread twice: a signal handler may call in again.

    No graph capture begins during a turn.

    Args:
        first: What each turn begins with.
        last: What it ends with, however it does.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before, self._after = before, after
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._deferred: Callable[[], None] | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Wait for this thread's turn; within a ``with``, which is given whether it has come."""
        if self._is_held_here or not self._lock.acquire(timeout=WAIT_S):
            yield False
            return
        self._owner = threading.get_ident()
        try:
            with GRAPH_CAPTURES.held_back_now():
                self._before()
                yield True
        finally:
            self._end()

    def _end(self) -> None:
        """Let others have theirs, and do what was put off."""
        try:
            self._after()
        finally:
            self._owner = None
            self._lock.release()
            action, self._deferred = self._deferred, None
            if action:
                action()

    @property
    def has_deferred(self) -> bool:
        """Whether something is to be done after the turn that is being taken."""
        return self._deferred is not None

    def defer(self, action: Callable[[], None]) -> bool:
        """Have ``action`` done after the turn that this thread is taking; False if it takes none.

        For a signal handler, which comes in the midst of it; done also where that raises.
        """
        if not self._is_held_here:
            return False
        self._deferred = action
        return True

    @property
    def _is_held_here(self) -> bool:
        return self._owner == threading.get_ident()

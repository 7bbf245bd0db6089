"""The lock of the loop: one thread at a time has a turn."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from dynprof.runtime.graph_captures import GRAPH_CAPTURES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WAIT_S = 60.0
"""How long a thread waits for another that opens or closes a window; then it skips its turn."""


class WindowLock:
    """Lets one thread in at a time, and no thread twice: a signal handler may call again.

    No graph capture begins during a turn.

    Args:
        before: Called at the start of each turn.
        after: Called at the end of each turn, also after an exception.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[], None]) -> None:
        self._before, self._after = before, after
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._deferred: Callable[[], None] | None = None

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Wait for this thread's turn, as a context manager that yields whether it got one."""
        if self._is_held_here or not self._lock.acquire(timeout=WAIT_S):
            yield False
            return
        self._owner = threading.get_ident()
        try:
            with GRAPH_CAPTURES.block_captures_now():
                self._before()
                yield True
        finally:
            self._end()

    def _end(self) -> None:
        """Release the lock, and run the deferred action."""
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
        """Whether an action is deferred until the end of the current turn."""
        return self._deferred is not None

    def defer(self, action: Callable[[], None]) -> bool:
        """Run ``action`` after the current turn of this thread; return False if it has none.

        A signal handler calls this during a turn. The action also runs if the turn raises.
        """
        if not self._is_held_here:
            return False
        self._deferred = action
        return True

    @property
    def _is_held_here(self) -> bool:
        return self._owner == threading.get_ident()

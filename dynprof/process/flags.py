"""A flag to wait for that no signal can break; :class:`threading.Event` has a lock of Python code.

Where a signal handler raises right after that lock was taken, it stays taken, and the next one who
sets, clears or waits stands for ever: the thread that trains, say, which handles the signals.
"""

from __future__ import annotations

import contextlib
import queue

from dynprof.clock import time
from dynprof.process.queues import next_of

_LOOK_AGAIN_S = 10.0
"""A handler may raise between the two lines of :meth:`Flag.set`."""


class Flag:
    """Is used as :class:`threading.Event` is.

    Args:
        is_set: Whether it is set from the beginning.
    """

    def __init__(self, *, is_set: bool = False) -> None:
        self._is_set = is_set
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Return whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake those who wait."""
        self._is_set = True
        self._wake_one()

    def clear(self) -> None:
        """Set it no more."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, for so many seconds at most; return whether it is."""
        end_s = float("inf") if timeout is None else time.monotonic() + timeout
        while not self._is_set and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                next_of(self._wakes, min(left_s, _LOOK_AGAIN_S))
                if self._is_set:
                    self._wake_one()  # as there may be others
        return self._is_set

    def _wake_one(self) -> None:
        if self._wakes.empty():
            self._wakes.put(None)

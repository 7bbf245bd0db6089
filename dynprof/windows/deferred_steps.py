"""Steps of a window that are only noted; the next turn counts them."""

from __future__ import annotations

import threading
from collections import deque
from time import time_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.requests.inbox import Inbox
    from dynprof.windows.driver import WindowDriver

TURN_EVERY_S = 0.25
"""Longest time without a turn, which checks the window's limits."""


class _Here(threading.local):
    """State of a thread; its id would not do, as the system reuses ids."""

    noting: object = None


_HERE = _Here()


class DeferredSteps:
    """Replaces the turn of ``step()`` by a note, where a recording accepts steps later.

    A turn takes some 50 microseconds when the job fills the processor's caches, a note a tenth of
    that. A turn is needed for another thread, a step number out of sequence, an order, the last
    step, and after :data:`TURN_EVERY_S`.

    A note takes no lock. One thread notes, any thread may count. A note appended after the count is
    removed by its own thread. So each step is either counted from its note, or gets a turn.

    Args:
        current: The window, which has a turn now.
        inbox: Has the number of the running step. The window has its own number, if the script has
            set another one in the meantime.
    """

    def __init__(self, current: WindowDriver, inbox: Inbox) -> None:
        done, asked = current.window.progress
        step = inbox.step  # once: another thread may be ending one
        self._current, self._inbox = current, inbox
        self._now_s = current.process.clock.now_s
        self._behind = step - current.step
        self._next, self._last = step + 1, step + asked - done
        self._until_s = self._now_s() + TURN_EVERY_S
        self._steps: deque[tuple[int, float, int]] = deque()
        self._counted = False
        self._token = _HERE.noting = object()

    def note(self) -> None:
        """Note the step that has just begun, or run a turn if it needs one.

        ``step()`` calls this directly, and all code is inline: each call costs microseconds when
        the job fills the caches.
        """
        inbox = self._inbox
        step, now_s = inbox.step, self._now_s()
        disturbed = inbox.close_reason or inbox.woken or _HERE.noting is not self._token
        if not (disturbed or step != self._next or step >= self._last or now_s >= self._until_s):
            noted = (step - self._behind, now_s, time_ns())
            self._steps.append(noted)
            self._next = step + 1
            if not self._counted or not self._remove_late_note(noted):
                return
        inbox.turn()

    def _remove_late_note(self, noted: tuple[int, float, int]) -> bool:
        """Remove a note made after the count; return False if it was counted after all."""
        try:
            self._steps.remove(noted)
        except ValueError:
            return False
        return True

    def count(self) -> None:
        """Count the noted steps in the window, each once; no more are noted."""
        self._counted = True
        while self._steps:
            try:
                self._current.step, now_s, at_ns = self._steps.popleft()
            except IndexError:  # it was taken back
                return
            self._current.window.count_noted(self._current.step, now_s, at_ns)

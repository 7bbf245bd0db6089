"""Steps of a window that are only noted; its next turn counts them."""

from __future__ import annotations

import threading
from collections import deque
from time import time_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.requests.inbox import Inbox
    from dynprof.windows.driver import WindowDriver

TURN_EVERY_S = 0.25
"""So often a turn comes all the same, which looks at the window's limits."""


class _Here(threading.local):
    """What belongs to a thread, not to its number: the system gives that to a later one."""

    noting: object = None


_HERE = _Here()


class DeferredSteps:
    """What ``step()`` does instead of a turn where a recording may be told of steps later.

    A turn takes some fifty microseconds where the job has the processor's caches, a note a tenth of
    that. Another thread, a number that does not follow, an order, the last step and
    :data:`TURN_EVERY_S` need a turn.

    A note takes no lock. One thread notes, any may count: what it appends after that, it takes back
    itself. So of each step either the note is counted, or its thread takes a turn.

    Args:
        current: The window, which has a turn now.
        inbox: Has the number of the step that is running; the window has its own, where the script
            has set another meanwhile.
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
        """Note the step that has just begun, or take a turn where it needs one.

        One function, with all in it, and what ``step()`` itself calls: where the job has the
        caches, each call costs microseconds.
        """
        inbox = self._inbox
        step, now_s = inbox.step, self._now_s()
        disturbed = inbox.close_reason or inbox.woken or _HERE.noting is not self._token
        if not (disturbed or step != self._next or step >= self._last or now_s >= self._until_s):
            noted = (step - self._behind, now_s, time_ns())
            self._steps.append(noted)
            self._next = step + 1
            if not self._counted or not self._took_back(noted):
                return
        inbox.turn()

    def _took_back(self, noted: tuple[int, float, int]) -> bool:
        """Remove what was noted after all had been counted; False where it was counted yet."""
        try:
            self._steps.remove(noted)
        except ValueError:
            return False
        return True

    def count(self) -> None:
        """Let the window count what was noted, each once; nothing more is noted."""
        self._counted = True
        while self._steps:
            try:
                self._current.step, now_s, at_ns = self._steps.popleft()
            except IndexError:  # it was taken back
                return
            self._current.window.count_noted(self._current.step, now_s, at_ns)

"""Steps of a window that are only noted; its next turn counts them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from dynprof.windows.limits import BETWEEN_S

if TYPE_CHECKING:
    from dynprof.process.clock import Clock
    from dynprof.requests.inbox import Inbox
    from dynprof.windows.open_window import OpenWindow


class NotedSteps:
    """What ``step()`` does instead of a turn where a recording only notes when steps begin.

    A turn takes some fifty microseconds where the job has the processor's caches, a note a tenth of
    that. Another thread, a number that does not follow, an order, the last step and
    :data:`BETWEEN_S` need a turn.

    Args:
        current: The window, which has a turn now.
        inbox: Has the number of the step that is running; the window has its own, where the script
            has set another meanwhile.
        clock: Of this process.
    """

    def __init__(self, current: OpenWindow, inbox: Inbox, clock: Clock) -> None:
        done, asked = current.window.progress
        step = inbox.step  # once: another thread may be ending one
        self._current, self._inbox, self._clock = current, inbox, clock
        self._behind = step - current.step
        self._next, self._last = step + 1, step + asked - done
        self._thread = threading.current_thread()  # numbers are given anew to later ones
        self._until_s = clock.now_s() + BETWEEN_S
        self._steps: deque[tuple[int, float]] = deque()

    def note(self) -> bool:
        """Note the step that has just begun; False where it needs a turn."""
        step, now_s = self._inbox.step, self._clock.now_s()
        if step != self._next or step >= self._last or now_s >= self._until_s:
            return False
        if self._inbox.disturbed or threading.current_thread() is not self._thread:
            return False
        of_window = step - self._behind
        self._steps.append((of_window, now_s))
        self._current.window.note_step(of_window)
        self._next = step + 1
        return True

    def count(self) -> None:
        """Let the window count what was noted, each once."""
        while self._steps:
            self._current.step, now_s = self._steps.popleft()
            self._current.window.count_noted(self._current.step, now_s)

"""Which thread is in the loop: one at a time."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from dynprof.process.one_at_a_time import OneAtATime
from dynprof.process.profile_functions import is_noting_a_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

WAIT_S = 60.0
"""For so long a thread waits for another that opens or closes a window; then it goes on."""


class Turns:
    """Lets one thread in at a time, and no thread twice: a signal handler may call in again.

    Args:
        first: What each turn begins with.
        last: What it ends with, however it does.
    """

    def __init__(self, first: Callable[[], None], last: Callable[[], None]) -> None:
        self.first, self.last = first, last
        self._place = OneAtATime()
        self._afterwards: Callable[[], None] | None = None

    def take(self) -> _Turn:
        """Wait for this thread's turn; within a ``with``, which is given whether it has come."""
        return _Turn(self)

    def begin(self, frame: FrameType) -> bool:
        """Wait for it, but where its owner waits for this thread, as it ends a window."""
        if self._place.enter(frame, 0):
            return True
        return not is_noting_a_call() and self._place.enter(frame, WAIT_S)

    def end(self, frame: FrameType) -> None:
        """Let others have theirs, and do what was put off."""
        self._place.leave(frame)
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
        if not self._place.is_mine:
            return False
        self._afterwards = action
        return True


class _Turn:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._frame: FrameType | None = None

    def __enter__(self) -> bool:
        frame = sys._getframe(1)
        if not self._turns.begin(frame):
            return False
        begun = False
        try:
            self._frame = frame
            self._turns.first()
            begun = True
        finally:
            if not begun:
                self.__exit__()
        return True

    def __exit__(self, *_: object) -> None:
        frame, self._frame = self._frame, None
        if not frame:
            return
        try:
            self._turns.last()
        finally:
            self._turns.end(frame)

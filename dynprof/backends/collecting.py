"""Who uses libkineto's session outside of any window: to collect events, or to end what lost it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.backends.detached_close import Taken

_PAUSE_S = 0.001


class Collecting:
    """The turns that were begun and have not ended, by who has them; true while there are any."""

    def __init__(self) -> None:
        self._begun: set[object] = set()
        self._looking = threading.RLock()  # a handler may look as well

    def __bool__(self) -> bool:
        return bool(self._begun)

    def begin(self, owner: object) -> None:
        """Begin a turn; to begin it again, after something failed, changes nothing."""
        self._begun.add(owner)

    def begin_unless(self, owner: object, taken: Callable[[], bool]) -> bool:
        """Begin a turn if nobody else has one; return whether that was so.

        Args:
            owner: Who has it then.
            taken: Says whether somebody has the session otherwise. Asked once all can see that
                the turn has begun: of two that come at once, one sees the other.
        """
        with self._looking:
            if not self._begun:
                self._begun.add(owner)
                if len(self._begun) == 1 and not taken():
                    return True
                self._begun.discard(owner)
            return False

    def end(self, owner: object) -> None:
        """End a turn."""
        self._begun.discard(owner)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all turns have ended."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._begun and (deadline_s is None or time.monotonic() < deadline_s):
            time.sleep(_PAUSE_S)


def collect(action: Callable[[], None], collected: Callable[[Taken], None], taken: Taken) -> None:
    """Collect what was taken, and tell that it has been, whatever becomes of it."""
    try:
        action()
    finally:
        collected(taken)

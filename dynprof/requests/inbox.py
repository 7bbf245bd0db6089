"""What ``step()`` looks into: the step counter, and what waits for the next step."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.requests.request import Request


class Inbox:
    """The meeting point of the watcher's thread and those that train.

    Attributes:
        step: The number of the step that is running; only ``step()`` and ``set_state()`` write it.
        due: Whether the next ``step()`` has to look closer; all that an idle one tests.
        free_disk_mb: The last known free MB where the capture of the waiting request would go;
            another thread asks the file system, so that a hung one does not hang the training.
        on_due: Called by ``step()`` when something is due: :attr:`turn`, or what may spare one.
        turn: Looks what is due.
        name_source: Returns who ends the steps.
        close_reason: Why the open window shall close; empty where it shall not.
        woken: Whether :meth:`wake` was called since the last turn.
        numbering: How often the script has gone on from another number: what the ranks agree on is
            about the numbers of one such count.
    """

    __slots__ = (
        "_lock",
        "_waiting",
        "close_reason",
        "due",
        "free_disk_mb",
        "name_source",
        "numbering",
        "on_due",
        "step",
        "turn",
        "woken",
    )

    def __init__(self, turn: Callable[[], None]) -> None:
        self.step = 0
        self.due = False
        self.free_disk_mb = float("inf")
        self.name_source: Callable[[], str] = str
        self.turn = turn
        self.on_due = turn
        self._lock = threading.RLock()
        self._waiting: Request | None = None
        self.close_reason = ""
        self.woken = False
        self.numbering = 0

    @property
    def steps_from(self) -> str:
        """Who ends the steps."""
        return self.name_source()

    @property
    def waiting(self) -> Request | None:
        """The newest request that is not open yet."""
        return self._waiting

    def put(self, request: Request, free_disk_mb: float) -> Request | None:
        """Leave a request for the training thread; return the one that it replaces."""
        with self._lock:
            self.free_disk_mb = free_disk_mb
            replaced, self._waiting = self._waiting, request
            self.due = True
        return replaced

    def replace(self, waiting: Request, better: Request) -> bool:
        """Put a request in the place of one; False where that waits no more."""
        with self._lock:
            if self._waiting is not waiting:
                return False
            self._waiting = better
            return True

    def disarm(self) -> Request | None:
        """Remove and return the waiting request."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        return waiting

    def request_close(self, reason: str) -> None:
        """Have the open window closed at the next step boundary."""
        with self._lock:
            self.close_reason, self.due = reason, True

    def wake(self) -> None:
        """Have the next ``step()`` look closer, though nothing waits for it."""
        with self._lock:
            self.woken = self.due = True

    def take_wake(self) -> bool:
        """Return whether :meth:`wake` was called since the last time."""
        with self._lock:
            woken, self.woken = self.woken, False
        return woken

    def take(self, request: Request) -> bool:
        """Take ``request`` out, unless it was replaced or disarmed meanwhile."""
        with self._lock:
            if self._waiting is not request:
                return False
            self._waiting = None
            return True

    def end_turn(self, *, window_open: bool) -> None:
        """End a turn: what is due from here on."""
        with self._lock:
            if not window_open:
                self.close_reason = ""
            self.due = window_open or self._waiting is not None or self.woken


class NoInbox:
    """What ``step()`` looks into where there is no session.

    Args:
        silent: Do not warn of the first step.
    """

    def __init__(self, *, silent: bool) -> None:
        self.step, self.due = 0, not silent

    def on_due(self) -> None:
        """Warn, once."""
        self.due = False
        text = "dynprof.step() was called before dynprof.init(); it does nothing"
        warnings.warn(text, stacklevel=3)

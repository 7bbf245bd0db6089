"""What ``step()`` reads: the step counter, and the work for the next step."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.requests.request import Request


class Inbox:
    """The state that the watcher's thread and the training threads share.

    Attributes:
        step: Number of the running step; only ``step()`` and ``set_state()`` write it.
        due: Whether the next ``step()`` has work to do; an idle ``step()`` tests nothing else.
        free_disk_mb: Last known free MB where the capture of the waiting request would go. Another
            thread asks the file system, so that a hanging disk does not block the training.
        has_work: Whether the next turn has work; :attr:`due` without a :attr:`note`.
        thread: The thread that took the last turn at the end of a step; None before the first turn.
        note: Called at the end of each step, to note its time; None while nothing needs it.
        on_due: Called by ``step()`` if :attr:`due` is set: :attr:`turn`, or what can replace it.
        turn: Does the work that is due.
        name_source: Returns what ends the steps.
        close_reason: Why the open window must close; empty if it need not.
        woken: Whether :meth:`wake` was called since the last turn.
        numbering: How often the script has set another step number. An agreement of the ranks
            applies to one numbering.
    """

    __slots__ = (
        "_lock",
        "_waiting",
        "close_reason",
        "due",
        "free_disk_mb",
        "has_work",
        "name_source",
        "note",
        "numbering",
        "on_due",
        "step",
        "thread",
        "turn",
        "woken",
    )

    def __init__(self, turn: Callable[[], None]) -> None:
        self.step = 0
        self.thread: threading.Thread | None = None
        self.due = self.has_work = False
        self.note: Callable[[], object] | None = None
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
        """What ends the steps."""
        return self.name_source()

    @property
    def training_thread(self) -> threading.Thread:
        """The thread that ends the steps, as far as is known; else the main thread."""
        known = self.thread
        return known if known and known.is_alive() else threading.main_thread()

    @property
    def waiting(self) -> Request | None:
        """The newest request whose window is not open yet."""
        return self._waiting

    def put(self, request: Request, free_disk_mb: float) -> Request | None:
        """Store a request for the training thread; return the request that it replaces."""
        with self._lock:
            self.free_disk_mb = free_disk_mb
            replaced, self._waiting = self._waiting, request
            self.due = self.has_work = True
        return replaced

    def replace(self, waiting: Request, better: Request) -> bool:
        """Replace the waiting request; return False if it no longer waits."""
        with self._lock:
            if self._waiting is not waiting:
                return False
            self._waiting = better
            return True

    def cancel(self) -> Request | None:
        """Remove and return the waiting request."""
        with self._lock:
            waiting, self._waiting = self._waiting, None
        return waiting

    def request_close(self, reason: str) -> None:
        """Request that the open window closes at the next step boundary."""
        with self._lock:
            self.close_reason = reason
            self.due = self.has_work = True

    def wake(self) -> None:
        """Request a turn at the next ``step()``, even if no request waits."""
        with self._lock:
            self.woken = self.due = self.has_work = True

    def take_wake(self) -> bool:
        """Return whether :meth:`wake` was called since the last call, and reset that."""
        with self._lock:
            woken, self.woken = self.woken, False
        return woken

    def take(self, request: Request) -> bool:
        """Remove ``request``; return False if it was already replaced or cancelled."""
        with self._lock:
            if self._waiting is not request:
                return False
            self._waiting = None
            return True

    def end_turn(self, *, window_open: bool) -> None:
        """End a turn: compute whether the next ``step()`` has work."""
        with self._lock:
            if not window_open:
                self.close_reason = ""
            self.has_work = window_open or self._waiting is not None or self.woken
            self.due = self.has_work or self.note is not None

    def time_steps(self, note: Callable[[], object] | None) -> None:
        """Call ``note`` at the end of each step from now on; None ends that.

        Steps in a window are noted only as far as the window needs a turn at each.
        """
        with self._lock:
            self.note = note
            if self.on_due in (self.turn, self._note_and_turn):
                self.restore_on_due()
            self.due = self.has_work or note is not None

    def restore_on_due(self) -> None:
        """Undo a replacement of :attr:`on_due`."""
        self.on_due = self._note_and_turn if self.note else self.turn

    def _note_and_turn(self) -> None:
        if note := self.note:
            note()
        if self.has_work:
            self.turn()


class NoInbox:
    """The inbox of a process without a session.

    Args:
        silent: Do not warn at the first step.
    """

    def __init__(self, *, silent: bool) -> None:
        self.step, self.due = 0, not silent

    def on_due(self) -> None:
        """Warn once."""
        self.due = False
        text = "dynprof.step() was called before dynprof.init(); it does nothing"
        warnings.warn(text, stacklevel=3)

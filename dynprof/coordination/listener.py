"""What everybody else hears of the leader, and replies.

Each looks at the place after the one that he has replied to, seldom while nothing happens and often
once something does. In jobs so large that it would be too much for the store, while nothing happens
one rank of each machine looks, and has the others look once there is something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.coordination.job_store import (
    JOINED,
    KEPT,
    LEADER,
    NAME,
    count_at,
    next_place,
    replies_at,
    said_at,
)
from dynprof.coordination.messages import (
    Farewell,
    Joined,
    Message,
    Rejoin,
    Reply,
    message_of,
    to_text,
)
from dynprof.process.shared_looks import SharedLooks

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.coordination.job_store import Store

FIRST_PAUSE_S = 0.001
"""Between two looks where something has just happened."""
IDLE_S, LOOKS_A_SECOND = 0.25, 4000
"""Between two looks where nothing happens, and how many there are at most in all each second."""
BUSY_LOOKS_A_SECOND = 20_000
"""In large jobs there are so many where something has just happened."""


class Listener:
    """Everybody else's side.

    Args:
        store: The job's, on a connection of this thread.
        rank: The one that listens.
        world_size: How many listen.
        machines: On how many they are.
        rest: Waits so many seconds; returns True where all is to end.
        share: Returns what the ranks of this machine know of who looks at a log.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        machines: float,
        rest: Callable[[float], bool],
        share: Callable[[str], SharedLooks] = SharedLooks,
    ) -> None:
        self._store, self._rank, self._rest = store, rank, rest
        self._share = share if world_size > IDLE_S * LOOKS_A_SECOND else None
        self._idle_s = max(IDLE_S, machines / LOOKS_A_SECOND)
        self._first_pause_s = max(FIRST_PAUSE_S, world_size / BUSY_LOOKS_A_SECOND)
        self._place = 0
        self._looks: SharedLooks | None = None

    def find_leader(self) -> str:
        """Wait until somebody leads, and begin to listen; return who it is, empty at the end."""
        while not (who := self._who_leads()):
            if self._rest(self._idle_s):
                return ""
        self._join()
        return who

    def _who_leads(self) -> str:
        there = self._store.check([LEADER])
        return self._store.get(LEADER).decode(errors="replace") if there else ""

    def hear(self) -> Message:
        """Wait for the next message, and return it; at the end that is a farewell.

        One that asks to join anew has been followed, and needs no reply.

        Raises:
            ValueError: It is none of dynprof's.
        """
        pause_s = self._first_pause_s
        while not self._is_said(idle=pause_s >= self._idle_s):
            if self._rest(pause_s):
                return Farewell()
            pause_s = min(pause_s * 1.5, self._idle_s)
        message = message_of(self._store.get(said_at(self._place)))
        if isinstance(message, Rejoin):
            if not self._who_leads():
                return Farewell()
            self._join()
        return message

    def _is_said(self, *, idle: bool) -> bool:
        """Look, unless another rank of this machine does and waits for the same."""
        looks = self._looks if idle else None
        if looks and looks.another_sees_the_same():
            return False
        there = self._store.check([said_at(self._place)])
        if looks:
            looks.has_seen(str(self._place + there))
        return there

    def end(self) -> None:
        """Leave it to others to look."""
        if self._looks:
            self._looks.end()

    def reply(self, said: Reply) -> None:
        """Reply to the message that was heard."""
        self._store.append(replies_at(self._place), to_text(said) + "\n")
        self._store.add(count_at(self._place), 1)
        self._place += 1

    def _join(self) -> None:
        """Begin with the next message that will be said."""
        if self._share:
            self._looks = self._share(self._store.get(NAME).decode(errors="replace"))
        while True:
            self._place = next_place(self._store)
            self._store.append(JOINED, to_text(Joined(self._rank, self._place)) + "\n")
            if (
                next_place(self._store) <= self._place + KEPT
            ):  # else it may have been removed meanwhile
                return

"""What everybody else hears of the leader, and replies.

Each looks at the place after the one that he has replied to, seldom while nothing happens and often
once something does; in large jobs less often, and one rank of each machine for all that are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.coordination.job_store import (
    DIRECT_RANKS,
    JOINED,
    KEPT,
    LEADER,
    NAME,
    next_place,
    said_at,
    value_of,
)
from dynprof.coordination.messages import Farewell, Joined, Message, Parted, Rejoin, Reply
from dynprof.coordination.pace import SLOW_GROWTH, Pace, first_pause_s
from dynprof.coordination.relay import Direct, Relay
from dynprof.coordination.wire import message_of, to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dynprof.coordination.job_store import Store
    from dynprof.coordination.relay import Line

IDLE_S, LOOKS_A_SECOND, LONGEST_IDLE_S = 0.25, 4000, 1.5
"""Between two looks where nothing happens, and how many there are at most in all each second."""
LOST_S = 30.0
"""After so long without a message it is looked whether the one that is waited for is gone."""
DEAD_S = 300.0
"""A leader that lives calls the roll much more often: the store may outlive who leads."""


class Listener:
    """Everybody else's side.

    Args:
        store: The job's, on a connection of this thread.
        rank: The one that listens.
        world_size: How many listen.
        machines: On how many they are.
        rest: Waits so many seconds; returns True where all is to end.
        relay: Makes what the ranks of this machine share, of the store, the pace of looks into it,
            and the name of the log.
        say: Is told once where something else than dynprof writes in its place.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world_size: int,
        machines: float,
        rest: Callable[[float], bool],
        relay: Callable[[Store, Pace, str], Line] = Relay,
        say: Callable[[str], object] = str,
    ) -> None:
        self._store, self._rank, self._rest = store, rank, rest
        self._say, self._told = say, False
        self._relay = relay if world_size > DIRECT_RANKS else None
        asking = machines if self._relay else world_size
        self._idle_s = min(LONGEST_IDLE_S, max(IDLE_S, asking / LOOKS_A_SECOND))
        self._pace = Pace(first_pause_s(asking), self._idle_s, SLOW_GROWTH)
        self._place = 0
        self._dead_since = -1  # the place of the next message, as the leader was taken for dead
        self._line: Line = Direct(store, self._pace)

    def find_leader(self) -> str:
        """Wait until somebody leads, and begin to listen; return who it is, empty at the end."""
        while not (who := self._who_leads()):
            if self._rest(self._idle_s):
                return ""
        self._join()
        return who

    def _who_leads(self) -> str:
        who = value_of(self._store, LEADER)
        if not who or next_place(self._store) == self._dead_since:
            return ""
        return who.decode(errors="replace")

    def hear(self) -> Message:
        """Wait for the next message, and return it; at the end that is a farewell.

        It comes once all have replied to the one before, so that this does not look at once. One
        that asks to join anew has been followed, and needs no reply.
        """
        self._line.begin()
        silent_s = 0.0
        while True:
            pause_s = self._line.pause_s()
            if self._rest(pause_s):
                return Farewell()
            if (message := self._look()) is not None:
                break
            before_s, silent_s = silent_s, silent_s + pause_s
            if silent_s >= DEAD_S:
                self._dead_since = next_place(self._store)
                return Farewell(f"rank 0 has said nothing for {DEAD_S:g} s")
            if before_s // LOST_S < silent_s // LOST_S and self._is_lost():
                message = Rejoin()
                break
        if isinstance(message, Rejoin):
            if not self._who_leads():
                return Farewell()
            self._join()
        return message

    def _look(self) -> Message | None:
        """Return the message that is waited for, if it is there; what is none counts as nothing."""
        raw = self._line.said(self._place)
        try:
            return None if raw is None else message_of(raw)
        except ValueError:
            self._tell_of_others(said_at(self._place))
            if next_place(self._store) > self._place:  # else the leader has yet to say it
                self._place += 1
            return None

    def _tell_of_others(self, key: str) -> None:
        if not self._told:
            self._told = True
            self._say(f"{key} in the job's store is no message of dynprof's: it counts as nothing")

    def _is_lost(self) -> bool:
        """Return whether what is waited for will not be said.

        It was away as the leader changed, and the new one does not know of it, or something else
        than dynprof has set the number of the next.
        """
        place = next_place(self._store)
        return not place - KEPT <= self._place <= place

    def reply(self, said: Reply) -> None:
        """Reply to the message that was heard."""
        self._line.reply(self._place, to_text(said))
        self._place += 1

    def part(self, last: Mapping[int, Reply]) -> None:
        """Listen no more; say what became of requests, by their numbers, in one go."""
        lines = [to_text(Parted(number, reply)) + "\n" for number, reply in last.items()]
        self._store.append(JOINED, "".join(lines))

    def end(self) -> None:
        """Leave it to others to look."""
        self._line.end()

    def _join(self) -> None:
        """Begin with the next message that will be said."""
        if self._relay:
            self._line.end()
            name = (value_of(self._store, NAME) or b"").decode(errors="replace")
            self._line = self._relay(self._store, self._pace, name)
        while True:
            self._place = next_place(self._store)
            self._store.append(JOINED, to_text(Joined(self._rank, self._place)) + "\n")
            # Else the message of that place may have been removed meanwhile.
            if next_place(self._store) <= self._place + KEPT:
                return

"""What the leader says to all, one message after the other, in the job's key-value store.

Each message has a place, and its replies have it too. Everybody else looks at the place after the
one that he has replied to, seldom while nothing happens and often once something does. The newest
few messages stay. Who is away for longer finds in his next place that he has to join anew; these
are the only old ones that are kept. In jobs so large that it would be too much for the store, while
nothing happens one rank of each machine looks, and has the others look once there is something.

Nobody waits inside of the store: a thread that did would take the process with it, where it woke as
the interpreter ends (seen: "terminate called without an active exception").
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Protocol

from dynprof.coordination.messages import (
    Farewell,
    Joined,
    Message,
    Rejoin,
    Reply,
    lines_of,
    message_of,
    to_text,
)
from dynprof.process.shared_looks import SharedLooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PREFIX = "dynprof"
LEADER, NEXT, JOINED = f"{PREFIX}/leader", f"{PREFIX}/next", f"{PREFIX}/joined"
NAME = f"{PREFIX}/name"
"""Of this log, unlike all others."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.05
"""Between two looks at how many have replied, or at what comes next."""
IDLE_S, LOOKS_A_SECOND = 0.25, 4000
"""Between two looks where nothing happens, and how many there are at most in all each second."""
BUSY_LOOKS_A_SECOND = 20_000
"""In large jobs there are so many where something has just happened."""
KEPT = 4
"""Newest messages that stay, whoever has replied to them."""


class Store(Protocol):
    """What is used of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def get(self, key: str) -> bytes:
        """Return a value; asked for only where it is there."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return it."""

    def append(self, key: str, value: str) -> None:
        """Append to a value, empty at first."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all are there."""

    def delete_key(self, key: str) -> bool:
        """Remove one; return whether it was there."""


class Speaker:
    """The leader's side.

    Args:
        store: The job's, on a connection of this thread.
        clock: Returns monotonic seconds.
        sleep: Waits so many.

    Attributes:
        away: Ranks that did not reply in time, and are not waited for until they have caught up.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._clock, self._sleep = store, clock, sleep
        self._place = _next(store)
        self._joined = b""
        self._awaits: dict[int, int] = {}  # the place that each rank waits for
        self.away: set[int] = set()
        self._there = set(range(max(0, self._place - KEPT), self._place))

    def lead(self, who: str) -> None:
        """Say who leads; those who wait for a leader begin to listen.

        A store that outlives its ranks, as torchrun's does, still names the leader before; who has
        joined that one is told to join anew.
        """
        led_before = self._store.check([LEADER])
        self._store.set(NEXT, str(self._place))
        self._store.delete_key(JOINED)
        self._store.set(NAME, secrets.token_hex(8))
        self._store.set(LEADER, who)
        if led_before:
            self.say(Rejoin())

    def resign(self, farewell: Message) -> None:
        """Say that nobody leads any more; waits for no reply."""
        self._store.set(LEADER, "")
        self.say(farewell)

    def listeners(self) -> set[int]:
        """Return the ranks that listen and are not away."""
        if self._store.check([JOINED]):
            joined = self._store.get(JOINED)
            news = joined.removeprefix(self._joined)  # it only grows, while this leads
            self._joined = joined
            for one in lines_of(Joined, news):
                if one.place > self._awaits.get(one.rank, -1):
                    self._awaits[one.rank] = one.place
        for place in sorted(self._there) if self.away else ():
            self._note(place, self._read(place))
        self.away = {rank for rank in self.away if self._awaits[rank] < self._place}
        return self._awaits.keys() - self.away

    def say(self, message: Message) -> int:
        """Say something to all; return its place."""
        place, self._place = self._place, self._place + 1
        self._store.set(_key(place, "said"), to_text(message))
        self._store.set(NEXT, str(self._place))
        self._there.add(place)
        self._tidy()
        return place

    def replies(self, place: int, patience_s: float) -> dict[int, Reply]:
        """Return what those who listen reply, by rank; who has not after the patience is away."""
        expected = self.listeners()
        until_s, pause_s = self._clock() + patience_s, FIRST_PAUSE_S
        found: dict[int, Reply] = {}
        needed = len(expected)
        while not expected <= found.keys():
            there = self._store.add(_key(place, "count"), 0)
            late = self._clock() >= until_s
            if there >= needed or late:
                found = self._read(place)
                needed = there + 1
            if late:
                break
            if not expected <= found.keys():
                self._sleep(pause_s)
                pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)
        self._note(place, found)
        self.away |= expected - found.keys()
        return found

    def _note(self, place: int, ranks: Iterable[int]) -> None:
        for rank in ranks:
            self._awaits[rank] = max(place + 1, self._awaits.get(rank, 0))

    def _read(self, place: int) -> dict[int, Reply]:
        if not self._store.check([_key(place, "replies")]):
            return {}
        return {one.rank: one for one in lines_of(Reply, self._store.get(_key(place, "replies")))}

    def _tidy(self) -> None:
        """Remove what is old; who still waits for it is told to join anew."""
        # Who is away may have heard the one that he has not replied to, or not.
        awaited = {self._awaits[rank] + more for rank in self.away for more in (0, 1)}
        for place in sorted(place for place in self._there if place < self._place - KEPT):
            if place in awaited:
                self._store.set(_key(place, "said"), to_text(Rejoin()))
            else:
                self._there.discard(place)
                for what in ("said", "count", "replies"):
                    self._store.delete_key(_key(place, what))


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
        message = message_of(self._store.get(_key(self._place, "said")))
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
        there = self._store.check([_key(self._place, "said")])
        if looks:
            looks.has_seen(str(self._place + there))
        return there

    def end(self) -> None:
        """Leave it to others to look."""
        if self._looks:
            self._looks.end()

    def reply(self, said: Reply) -> None:
        """Reply to the message that was heard."""
        self._store.append(_key(self._place, "replies"), to_text(said) + "\n")
        self._store.add(_key(self._place, "count"), 1)
        self._place += 1

    def _join(self) -> None:
        """Begin with the next message that will be said."""
        if self._share:
            self._looks = self._share(self._store.get(NAME).decode(errors="replace"))
        while True:
            self._place = _next(self._store)
            self._store.append(JOINED, to_text(Joined(self._rank, self._place)) + "\n")
            if _next(self._store) <= self._place + KEPT:  # else it may have been removed meanwhile
                return


def _next(store: Store) -> int:
    return int(store.get(NEXT)) if store.check([NEXT]) else 0


def _key(place: int, what: str) -> str:
    return f"{PREFIX}/{place}/{what}"

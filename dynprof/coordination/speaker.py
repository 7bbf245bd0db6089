"""What the leader says to all, one message after the other, in the job's key-value store.

The newest few messages stay. Who is away for longer finds in his next place that he has to join
anew; these are the only old ones that are kept.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

from dynprof.coordination.job_store import (
    DIRECT_RANKS,
    JOINED,
    KEPT,
    LEADER,
    NAME,
    NEXT,
    count_at,
    next_place,
    replies_at,
    said_at,
    value_of,
)
from dynprof.coordination.messages import Joined, Message, Parted, Rejoin, Reply
from dynprof.coordination.pace import FIRST_PAUSE_S, Pace, first_pause_s
from dynprof.coordination.wire import coming_and_going, lines_of, to_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Set as AbstractSet

    from dynprof.coordination.job_store import Store

LONGEST_PAUSE_S = 0.05
"""Between two looks at how many have replied."""
LAST_WORDS = 8
"""Of so many requests, the newest, it is kept what a rank said of them as it parted."""


class Speaker:
    """The leader's side.

    Args:
        store: The job's, on a connection of this thread.
        world_size: How many ranks the job has.
        clock: Returns monotonic seconds.
        sleep: Waits so many.

    Attributes:
        away: Ranks that did not reply in time, and are not waited for until they have caught up.
        unheard_s: For so long after a reply none looks for the next message.
    """

    def __init__(
        self,
        store: Store,
        world_size: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._clock, self._sleep = store, clock, sleep
        self._is_large = world_size > DIRECT_RANKS
        self.unheard_s = 0.0 if self._is_large else first_pause_s(world_size)
        self._place = next_place(store)
        self._joined = b""
        self._awaits: dict[int, int] = {}  # the place that each rank waits for
        self._begins: dict[int, int] = {}  # the place from which each listens
        self._parted: set[int] = set()
        self._last: dict[int, dict[int, Reply]] = {}  # by rank, and number of the request
        self.away: set[int] = set()
        self._there = set(range(max(0, self._place - KEPT), self._place))

    def lead(self, who: str) -> None:
        """Say who leads; those who wait for a leader begin to listen.

        A store that outlives its ranks, as torchrun's does, still names the leader before; who has
        joined that one is told to join anew.
        """
        led_before = value_of(self._store, LEADER) is not None
        self._store.set(NEXT, str(self._place))
        self._store.delete_key(JOINED)
        self._store.set(NAME, secrets.token_hex(8))
        self._store.set(LEADER, who)
        if led_before:
            self.say(Rejoin())

    def resign(self, farewell: Message) -> None:
        """Say that nobody leads any more, and leave what is still waited for; wait for no reply."""
        awaited = {*self._awaits.values(), self._place}
        self._store.set(LEADER, "")
        self.say(farewell)
        self._store.delete_key(JOINED)
        for place in self._there - awaited:
            self._remove(place)

    def listeners(self) -> set[int]:
        """Return the ranks that listen and are not away."""
        self._hears_news()
        for place in sorted(self._there) if self.away else ():
            self._note(place, _by_rank(self._replied(place, 0) or b"").keys())
        late = {rank for rank, place in self._awaits.items() if place < self._place}
        self.away &= late
        return self._awaits.keys() - self.away

    def _hears_news(self) -> bool:
        """Hear who has joined and who has parted since; return whether anybody has."""
        joined = value_of(self._store, JOINED) or self._joined
        news = joined.removeprefix(self._joined)  # it only grows, while this leads
        self._joined = joined
        for one in coming_and_going(news):
            self._hear_of(one)
        return bool(news)

    def _hear_of(self, one: Joined | Parted) -> None:
        if isinstance(one, Parted):
            rank = one.reply.rank
            self._awaits.pop(rank, None)
            self._parted.add(rank)
            words = {**self._last.get(rank, {}), one.number: one.reply}
            self._last[rank] = dict(sorted(words.items())[-LAST_WORDS:])
        else:
            self._begins[one.rank] = one.place
            self._awaits[one.rank] = max(one.place, self._awaits.get(one.rank, 0))
            self._parted.discard(one.rank)

    @property
    def parted(self) -> set[int]:
        """Ranks that have said that they listen no more."""
        return set(self._parted)

    def last_words(self, number: int) -> dict[int, Reply]:
        """Return what those who have parted said of a request, by rank.

        They may have joined again since: what they know of it then is nothing.
        """
        return {rank: of[number] for rank, of in self._last.items() if number in of}

    def say(self, message: Message) -> int:
        """Say something to all; return its place.

        Who was away and has caught up by now is expected to reply to it.
        """
        if self.away:
            self.listeners()
        place, self._place = self._place, self._place + 1
        self._store.set(said_at(place), to_text(message))
        self._store.set(NEXT, str(self._place))
        self._there.add(place)
        self._tidy()
        return place

    def replies(self, place: int, patience_s: float) -> dict[int, Reply]:
        """Return what those who listen reply, by rank; who has not after the patience is away."""
        expected = self._hearers(place)
        until_s, pace = self._clock() + patience_s, Pace(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        found: dict[int, Reply] = {}
        needed = len(expected)
        while not expected <= found.keys():
            late = self._clock() >= until_s
            raw = self._replied(place, 0 if late else needed)
            if raw is not None:
                found = _by_rank(raw)
                needed = raw.count(b"\n") + 1
            if late:
                break
            if not expected <= found.keys():
                self._sleep(pace.pause_s())
            if pace.is_longest and self._hears_news():  # somebody has parted, or joined anew
                expected &= self._hearers(place)
                needed = min(needed, len(expected))
        self._note(place, found.keys())
        self.away |= expected - found.keys()
        return found

    def _replied(self, place: int, needed: int) -> bytes | None:
        """Return the replies, if there are so many."""
        if needed and self._is_large and self._store.add(count_at(place), 0) < needed:
            return None
        raw = value_of(self._store, replies_at(place)) or b""
        return raw if raw.count(b"\n") >= needed else None

    def _hearers(self, place: int) -> set[int]:
        """Return the ranks that listen, but for who has joined since that was said."""
        return {rank for rank in self.listeners() if self._begins.get(rank, 0) <= place}

    def _note(self, place: int, ranks: AbstractSet[int]) -> None:
        for rank in ranks - self._parted:
            self._awaits[rank] = max(place + 1, self._awaits.get(rank, 0))

    def _tidy(self) -> None:
        """Remove what is old; who still waits for it is told to join anew."""
        # Who is away may have heard the one that he has not replied to, or not.
        awaited = {self._awaits[rank] + more for rank in self.away for more in (0, 1)}
        for place in sorted(place for place in self._there if place < self._place - KEPT):
            if place in awaited:
                self._store.set(said_at(place), to_text(Rejoin()))
            else:
                self._remove(place)

    def _remove(self, place: int) -> None:
        self._there.discard(place)
        for key in (said_at(place), count_at(place), replies_at(place)):
            self._store.delete_key(key)


def _by_rank(replies: bytes) -> dict[int, Reply]:
    return {one.rank: one for one in lines_of(Reply, replies)}

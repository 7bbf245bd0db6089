"""How a rank hears the leader and replies: by itself, or one of its machine does for all there.

A store that serves ten thousand ranks is better asked by their machines. The first of a machine
that looks puts what is said into the machine's memory, where the others look, and passes on what
they reply. It may end, be stopped or be busy at any moment: then another goes on, and who cannot be
sure that a reply of his was passed on gives it again. One that comes twice counts once.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dynprof.coordination.job_store import KEPT, count_at, next_place, replies_at, said_at, value_of
from dynprof.coordination.pace import FIRST_PAUSE_S, SLOW_GROWTH, Pace
from dynprof.coordination.wire import MOST_BYTES
from dynprof.files.output import write_atomic
from dynprof.files.regular import read_regular
from dynprof.process.shared_looks import SharedLooks
from dynprof.process.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.coordination.job_store import Store
    from dynprof.process.shared_looks import Notice


LOCAL_IDLE_S = 0.1
"""Between two looks into the machine's memory where nothing happens."""
COLLECT_S = LOCAL_IDLE_S
"""For so long replies are held for those that are to come: who is free has looked by then."""


class Line(Protocol):
    """Between the leader and a rank."""

    def begin(self) -> None:
        """Begin to wait for a message."""

    def pause_s(self) -> float:
        """Return how long to wait before the next look."""

    def said(self, place: int) -> bytes | None:
        """Return the message of a place, if there is one yet."""

    def reply(self, place: int, text: str, /) -> None:
        """Reply to it."""

    def end(self) -> None:
        """Hear nothing any more."""


class Direct:
    """Asks the store itself.

    Args:
        store: The job's, on a connection of this thread.
        pace: Of looks into it.
        counts: Whether it is counted how many replies there are.
    """

    def __init__(self, store: Store, pace: Pace, *, counts: bool = False) -> None:
        self._store, self._counts = store, counts
        self.begin, self.pause_s = pace.begin, pace.pause_s

    def said(self, place: int) -> bytes | None:
        """Return the message of a place, if there is one yet."""
        return value_of(self._store, said_at(place))

    def reply(self, place: int, *texts: str) -> None:
        """Reply to it, for one rank or several."""
        self._store.append(replies_at(place), "".join(f"{text}\n" for text in texts))
        if self._counts:
            self._store.add(count_at(place), len(texts))

    def end(self) -> None:
        """Nothing is left behind."""


class Handed(NamedTuple):
    """A reply that another is to pass on: who, and which."""

    to: str
    place: int
    text: str


class Bundle:
    """Replies of a machine's ranks that are passed on together: each call of the store counts.

    All reply to each message; so as many are waited for as came to the one before.

    Args:
        clock: Returns monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._of_place: dict[int, list[str]] = {}
        self._since_s = 0.0
        self._newest = -1
        self._replied = self._expected = 0

    def put(self, place: int, text: str) -> None:
        """Hold a reply."""
        if place > self._newest:
            self._newest, self._expected, self._replied = place, self._replied, 0
        self._replied += place == self._newest
        if not self._of_place:
            self._since_s = self._clock()
        self._of_place.setdefault(place, []).append(text)

    @property
    def is_due(self) -> bool:
        """Whether nothing is to come, or was waited for for long enough."""
        is_all = self._replied >= self._expected
        return bool(self._of_place) and (is_all or self._clock() >= self._since_s + COLLECT_S)

    def take(self) -> dict[int, list[str]]:
        """Return what is held, by place, and hold it no more."""
        held, self._of_place = self._of_place, {}
        return held


class Relay:
    """Asks for all ranks of its machine, or has another ask.

    Args:
        store: The job's, on a connection of this thread.
        pace: Of looks into it.
        log: What tells what this leader says from that of all others.
        folder: Where the ranks of the machine meet; without it, in its memory.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        pace: Pace,
        log: str,
        folder: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._direct = store, Direct(store, pace, counts=True)
        self._pace, self._clock = pace, clock
        self._local = Pace(FIRST_PAUSE_S, LOCAL_IDLE_S, SLOW_GROWTH)
        self._asks_at_s = clock()
        self.pause_s = self._local.pause_s
        self._looks = SharedLooks(log, folder)
        self._message_path = self._looks.path_beside(".said")
        self._replies = Spool(self._looks.path_beside(".replies"))
        self._bundle = Bundle(clock)
        self._handed: Handed | None = None

    def begin(self) -> None:
        """Begin to wait for a message."""
        self._local.begin()
        self._pace.begin()
        self._asks_at_s = self._clock() + self._pace.pause_s()

    def said(self, place: int) -> bytes | None:
        """Return the message of a place, if there is one yet."""
        other = self._looks.another()
        self._make_sure(other)
        if other is None:
            return self._ask_for_all(place)
        if not other.seen.isdecimal() or int(other.seen) <= place:
            return None
        return self._shared(place) or self._direct.said(place)

    def reply(self, place: int, text: str, /) -> None:
        """Reply to it, or hand that to the one that asks."""
        other = self._looks.another()
        if other is None and self._message_path:
            self._bundle.put(place, text)
        elif other and self._replies.put(f"{place} {text}"):
            self._handed = Handed(other.looker, place, text)
        else:
            self._direct.reply(place, text)

    def end(self) -> None:
        """Leave it to others; what they have given to this one is passed on."""
        asked = self._looks.end()
        if asked:
            self._collect()
        try:
            self._pass_on()
        finally:  # the store may be gone by then
            if asked:
                self._remove_shared()

    def _remove_shared(self) -> None:
        self._replies.remove()
        if self._message_path:
            self._message_path.unlink(missing_ok=True)

    def _ask_for_all(self, place: int) -> bytes | None:
        """Ask the store, by its pace, and pass on what others of the machine have replied."""
        raw = None
        if self._clock() >= self._asks_at_s:
            raw = self._direct.said(place)
            self._asks_at_s = self._clock() + self._pace.pause_s()
        if raw is not None and self._message_path:
            with contextlib.suppress(OSError):  # then each asks itself
                write_atomic(self._message_path, f"{place}\n{raw.decode(errors='replace')}")
        self._looks.has_seen(str(place + (raw is not None)))
        self._collect()
        if self._bundle.is_due:
            self._pass_on()
        return raw

    def _shared(self, place: int) -> bytes | None:
        """Return the message of that place, where it is the newest that was shared."""
        if self._message_path:
            with contextlib.suppress(OSError):
                raw = read_regular(self._message_path, 2 * MOST_BYTES)
                number, _, message = raw.partition(b"\n")
                return message if number == b"%d" % place else None
        return None

    def _collect(self) -> None:
        for line in self._replies.take():
            place, _, text = line.partition(" ")
            if place.isdecimal():
                self._bundle.put(int(place), text)

    def _pass_on(self) -> None:
        for place, texts in self._bundle.take().items():
            self._direct.reply(place, *texts)

    def _make_sure(self, other: Notice | None) -> None:
        """Give a reply again where it was handed to one that asks no more."""
        if other:  # this one does not ask any more
            self._pass_on()
        handed = self._handed
        if handed and (other is None or other.looker != handed.to):
            self._handed = None
            if next_place(self._store) <= handed.place + KEPT:  # else it is not waited for any more
                self._direct.reply(handed.place, handed.text)

"""The keys of the job's key-value store, and the leader's and the ranks' operations on them.

The leader's messages form one log: place ``n`` of it is the key ``say/n``. Each rank blocks in
``wait`` for the place after the last that it has read. Replies to a place are appended to
``re/n`` and counted in ``count/n``. The last reply sets ``notice``, for which the leader waits.
Ranks append their own news to ``news``, and set ``notice`` too.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NO_MESSAGE = "~"  # An empty message that ends a wait.
KEPT = 64  # Messages that stay in the store; a rank that is farther behind reconnects.
DIGITS = 15
"""Most digits of a place; longer text is another program's."""
FOREVER = datetime.timedelta(days=20)
"""How long a rank waits for a message. After a timeout torch writes two warnings to the job's
stderr, and TCP itself survives a cut of some minutes."""
_NOTHING = "?"  # A value that dynprof never stores.


Store = Any
"""A ``torch.distributed.Store`` with ``set``, ``add``, ``append``, ``compare_set``, ``delete_key``
and ``wait``: a rank's own connection."""


class Keys:
    """The keys."""

    leader, next = "dynprof/leader", "dynprof/next"
    news, notice = "dynprof/news", "dynprof/notice"
    message, replies, count = (f"dynprof/{of}/{{}}".format for of in ("say", "re", "count"))


def value_of(store: Store, key: str) -> bytes | None:
    """Return a value; None where there is none.

    ``compare_set`` returns the expected value for a missing key; ``get`` would wait for the key.
    """
    found = bytes(store.compare_set(key, _NOTHING, _NOTHING))
    return None if found == _NOTHING.encode() else found


def next_place(store: Store) -> int:
    """Return the place of the next message; 0 if there was none yet."""
    text = (value_of(store, Keys.next) or b"")[: DIGITS + 1]
    return int(text) if text.isdigit() and len(text) <= DIGITS else 0


class LogWriter:
    """The leader's side of the log."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._place = next_place(store)
        self._asked: list[int] = []  # places whose replies may be in the store

    def begin(self, text: str) -> int:
        """Send the first message; it stays in the store for ranks that join late."""
        self._store.set(Keys.leader, text)
        return self.send(text)

    def send(self, text: str) -> int:
        """Append a message, and delete an old one with its replies; return the new one's place."""
        while True:
            place, self._place = self._place, self._place + 1
            is_sent = self._store.compare_set(Keys.message(place), "", text) == text.encode()
            self._delete(place - KEPT, Keys.message, Keys.replies, Keys.count)
            if is_sent:  # else an empty message is there
                break
        self._store.set(Keys.next, str(self._place))
        return place

    def _delete(self, place: int, *keys: Callable[[int], str]) -> None:
        for of in keys:
            self._store.delete_key(of(place))

    def expect(self, place: int) -> None:
        """Read replies to a place from now on; only the newest two places are read."""
        self._asked = [*self._asked, place][-2:]

    def take(self) -> bytes:
        """Return new replies and news as lines, replies first."""
        keys = [*map(Keys.replies, self._asked), Keys.news]
        return b"".join(map(self._take, keys))

    def _take(self, key: str) -> bytes:
        """Return a value and empty it, with what ranks add in the meantime."""
        while True:
            found = value_of(self._store, key)
            if not found:
                return b""
            try:
                text = found.decode()
            except UnicodeDecodeError:  # another program wrote into it
                self._store.delete_key(key)
                return found
            if bytes(self._store.compare_set(key, text, "")) == b"":
                return found

    def resign(self) -> None:
        """Remove the leader's name, and the replies and news; ranks may still read messages."""
        for key in (Keys.leader, Keys.news):
            self._store.delete_key(key)
        for place in self._asked:
            self._delete(place, Keys.replies, Keys.count)


class LogReader:
    """The other ranks' side of the log; :meth:`wait` blocks, so it has its own thread."""

    def __init__(self, calls: Store, waits: Store) -> None:
        self._calls, self._waits = calls, waits
        self.place = next_place(calls)

    def leader(self) -> bytes:
        """Return the first message of the newest leader; empty if there is none."""
        return value_of(self._calls, Keys.leader) or b""

    def wait(self) -> tuple[int, bytes | None]:
        """Block until there is a message; return its place and the message.

        The message is None if it was deleted: this rank was away, and continues with the newest.
        """
        self._waits.wait([Keys.message(self.place)], FOREVER)
        place, found = self.place, value_of(self._waits, Keys.message(self.place))
        newest = place + 1 if found is not None else next_place(self._waits)
        self.place = max(place + 1, newest)
        return place, found

    def end_wait(self, place: int) -> None:
        """End the wait for a place."""
        self._calls.compare_set(Keys.message(place), "", NO_MESSAGE)

    def reply(self, place: int, text: str, expect: int) -> None:
        """Reply to a message; the last reply that the leader expects wakes it."""
        self._calls.append(Keys.replies(place), text + "\n")
        if self._calls.add(Keys.count(place), 1) >= expect:
            self._calls.set(Keys.notice, "1")

    def send_news(self, text: str) -> None:
        """Send the leader news that it did not ask for."""
        self._calls.append(Keys.news, text + "\n")
        self._calls.set(Keys.notice, "1")


def wait_for_notice(store: Store) -> None:
    """Block until a rank wakes the leader."""
    store.wait([Keys.notice], FOREVER)
    store.delete_key(Keys.notice)


def unwrapped(store: Any) -> Any:
    """Return the store below the wrappers that only prefix keys, as a process group adds them."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return store

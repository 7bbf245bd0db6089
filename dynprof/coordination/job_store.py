"""What is used of the job's key-value store, and under which names.

Each message of the leader has a place, counted from 0, and its replies have it too. Nobody waits
inside of the store: a thread that did would take the process with it, where it woke as the
interpreter ends (seen: "terminate called without an active exception").
"""

from __future__ import annotations

from typing import Any, Protocol

PREFIX = "dynprof"
LEADER, NEXT, JOINED = f"{PREFIX}/leader", f"{PREFIX}/next", f"{PREFIX}/joined"
"""Who leads, the place of the next message, and a line for each that has joined or parted."""
NAME = f"{PREFIX}/name"
"""Of what this leader says, unlike that of all others."""
DIGITS = 15
"""No leader says more messages than a number of so many counts."""
DIRECT_RANKS = 1000
"""Each of so many asks the store itself; of more, one of each machine for all that are there."""
_NOTHING = "?"
"""No value of dynprof's."""
KEPT = 4
"""Newest messages that stay, whoever has replied to them."""


class Store(Protocol):
    """What is used of a ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return it."""

    def append(self, key: str, value: str) -> None:
        """Append to a value, empty at first."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value where it is what is expected; return what it is, else what is expected."""

    def delete_key(self, key: str) -> bool:
        """Remove one; return whether it was there."""


def beneath(store: Any) -> Any:
    """Return the store below those that only put a prefix before keys, as a process group does."""
    while (inner := getattr(store, "underlying_store", None)) is not None:
        store = inner
    return store


def value_of(store: Store, key: str) -> bytes | None:
    """Return a value; None where there is none.

    In one call, after which nobody waits for what was removed between two. ``get`` would.
    """
    found = store.compare_set(key, _NOTHING, _NOTHING)
    return None if found == _NOTHING.encode() else found


def next_place(store: Store) -> int:
    """Return that of the next message; 0 where that was not said, or not by dynprof."""
    text = (value_of(store, NEXT) or b"")[: DIGITS + 1]
    return int(text) if text.isdigit() and len(text) <= DIGITS else 0


def said_at(place: int) -> str:
    """Return where the message of a place lies."""
    return f"{PREFIX}/{place}/said"


def replies_at(place: int) -> str:
    """Return where the replies to it lie, one a line."""
    return f"{PREFIX}/{place}/replies"


def count_at(place: int) -> str:
    """Return where it is counted in large jobs how many there are: to read all takes long."""
    return f"{PREFIX}/{place}/count"

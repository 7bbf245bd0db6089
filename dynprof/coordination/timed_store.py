"""A connection to the job's store of which another thread sees how long it has not answered.

Torch bounds how long a value is waited for, but not how long the store's host may be silent: where
that one is stopped, or behind a broken network, a call comes back hours later, or never. Where it
has gone, as at the end of a job, each call has torch write a page of C++ on the job's stderr: none
is made then.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dynprof.coordination.job_store import beneath
from dynprof.process.connections import Connection, connections

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.coordination.job_store import Store

GAP_S = 2.0
"""More than that between two looks is the silence of this process: it was stopped."""


class TimedStore:
    """Does what a store does.

    Args:
        connect: Makes the connection.
        clock: Returns monotonic seconds.
        is_gone: Whether the job has let go of its store. Where a child of rank 0's still has the
            server's sockets, as a worker of a loader, nothing is closed, and nobody answers.
    """

    def __init__(
        self,
        connect: Callable[[], Store],
        clock: Callable[[], float] = time.monotonic,
        is_gone: Callable[[], bool] = bool,
    ) -> None:
        self._connect, self._clock, self._is_gone = connect, clock, is_gone
        self._store: Any = None
        self._connection: Connection | None = None  # that of the store, where it was found
        self._call_now: object | None = None
        self._given_up = False
        self._seen: object | None = None
        self._looked_s, self._silent_s = clock(), 0.0

    def look(self) -> float:
        """Return for how many seconds a call has been seen not to come back; asked each second."""
        now_s, call = self._clock(), self._call_now
        gap_s, self._looked_s = min(GAP_S, now_s - self._looked_s), now_s
        self._silent_s = self._silent_s + gap_s if call and call is self._seen else 0.0
        self._seen = call
        return self._silent_s

    def give_up(self) -> None:
        """Have the call that is under way fail, whenever it comes back, and each after it."""
        self._given_up = True

    def _call(self, method: str, *given: Any) -> Any:
        self._call_now = object()
        try:
            if self._store is None:
                self._begin()
            if self._is_gone() or (self._connection and self._connection.is_closed):
                raise RuntimeError("the job's store is gone")
            found = getattr(self._store, method)(*given)
        finally:
            self._call_now = None
        if self._given_up:
            raise RuntimeError("the store answers too late")
        return found

    def _begin(self) -> None:
        before = connections()
        self._store = self._connect()
        port = getattr(beneath(self._store), "port", 0)
        new = [one for one in connections() - before if one.port == port]
        if len(new) == 1:  # another thread may have connected there as well
            (self._connection,) = new

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        self._call("set", key, value)

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first, and return it."""
        found: int = self._call("add", key, amount)
        return found

    def append(self, key: str, value: str) -> None:
        """Append to a value, empty at first."""
        self._call("append", key, value)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value where it is what is expected; return what it is, else what is expected."""
        found: bytes = self._call("compare_set", key, expected, desired)
        return found

    def delete_key(self, key: str) -> bool:
        """Remove one; return whether it was there."""
        found: bool = self._call("delete_key", key)
        return found

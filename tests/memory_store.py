"""The key-value store of a job, for ranks that are threads of one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime


class MemoryStore:
    """Does what is used of a ``torch.distributed.TCPStore``; threads may share it.

    Attributes:
        values: What it holds.
        calls: How often it was asked for something.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls = 0
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        """Set a value."""
        with self._change():
            self.values[key] = value.encode()

    def append(self, key: str, value: str) -> None:
        """Append to a value."""
        with self._change():
            self.values[key] = self.values.get(key, b"") + value.encode()

    def add(self, key: str, amount: int) -> int:
        """Add to a number and return it."""
        with self._change():
            number = int(self.values.get(key, b"0")) + amount
            self.values[key] = b"%d" % number
        return number

    def get(self, key: str) -> bytes:
        """Return a value, once it is there."""
        self.wait([key])
        return self.values[key]

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Wait until all are there."""
        with self._changed:
            self.calls += 1
            in_time = self._changed.wait_for(
                lambda: self.values.keys() >= set(keys),
                timeout.total_seconds() if timeout else None,
            )
        if not in_time:
            raise TimeoutError(str(keys))

    def check(self, keys: list[str]) -> bool:
        """Return whether all are there."""
        with self._changed:
            self.calls += 1
            return self.values.keys() >= set(keys)

    def delete_key(self, key: str) -> bool:
        """Remove one."""
        with self._change():
            return self.values.pop(key, None) is not None

    def _change(self) -> _Change:
        return _Change(self)


class _Change:
    """A change that those who wait hear of."""

    def __init__(self, store: MemoryStore) -> None:
        self._store, self._changed = store, store._changed

    def __enter__(self) -> None:
        self._changed.acquire()
        self._store.calls += 1

    def __exit__(self, *_: object) -> None:
        self._changed.notify_all()
        self._changed.release()

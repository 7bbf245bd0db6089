"""A fake of a job's key-value store, for ranks that are threads of one process."""

from __future__ import annotations

import contextlib
import datetime
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryStore:
    """The used part of a ``torch.distributed.TCPStore``; threads may share it.

    Attributes:
        values: The stored values.
        calls: The number of calls.
        is_lost: Whether every call fails.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls = 0
        self.is_lost = False
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

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value if it equals the expected one; return the value, else the expected one."""
        with self._change():
            found = self.values.get(key, expected.encode())
            is_there = key in self.values or not expected
            if is_there and found == expected.encode():
                found = self.values[key] = desired.encode()
        return found

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        """Block until other threads have set the values."""
        with self._changed:
            self.calls += 1
            if not self._changed.wait_for(
                lambda: self.is_lost or all(key in self.values for key in keys),
                timeout.total_seconds() if timeout < datetime.timedelta(hours=1) else None,
            ):
                raise TimeoutError(keys)
            if self.is_lost:
                raise RuntimeError("the server is gone")

    def delete_key(self, key: str) -> bool:
        """Remove a value."""
        with self._change():
            return self.values.pop(key, None) is not None

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with self._changed:
            self.calls += 1
            if self.is_lost:
                raise RuntimeError("the server is gone")
            yield
            self._changed.notify_all()

    def lose(self) -> None:
        """Make every later call fail."""
        with self._changed:
            self.is_lost = True
            self._changed.notify_all()

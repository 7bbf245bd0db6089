"""The key-value store of a job, for ranks that are threads of one process."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryStore:
    """Does what is used of a ``torch.distributed.TCPStore``; threads may share it.

    Attributes:
        values: What it holds.
        calls: How often it was asked for something.
    """

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.calls = 0
        self._lock = threading.Lock()

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
        """Set a value where it is what is expected; return what it is, else what is expected."""
        with self._change():
            found = self.values.get(key, expected.encode())
            if key in self.values and found == expected.encode():
                found = self.values[key] = desired.encode()
        return found

    def delete_key(self, key: str) -> bool:
        """Remove one."""
        with self._change():
            return self.values.pop(key, None) is not None

    @contextlib.contextmanager
    def _change(self) -> Iterator[None]:
        with self._lock:
            self.calls += 1
            yield

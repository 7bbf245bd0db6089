"""A check of the job's memory from rest to rest, with the requests where it grew."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_MB = 200.0
"""Allowed growth. Each kind of window keeps code and buffers of a profiler after its first use."""


class _Heaps(ctypes.Structure):
    """The result of ``mallinfo2``; see malloc.h."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def held_mb() -> float:
    """Return the resident memory that is not free, in MB (10^6 bytes).

    malloc keeps freed memory between used blocks. Over 20,000 steps and 900 edits that was 130 MB,
    of other sizes in each run. Used memory grew by 17 MB.
    """
    tell = ctypes.CDLL(None).mallinfo2
    tell.restype = _Heaps
    return float(psutil.Process().memory_info().rss - tell().fordblks) / 1e6


class MemoryGuard:
    """Compares memory at each rest, when nothing is recorded."""

    def __init__(self) -> None:
        self._first_mb: float | None = None
        self._last_mb = 0.0
        self._on: Counter[str] = Counter()
        self._growths: list[tuple[float, str]] = []

    @property
    def grown_mb(self) -> float:
        """The growth since the first rest, in MB (10^6 bytes)."""
        return self._last_mb - (self._last_mb if self._first_mb is None else self._first_mb)

    def note(self, settings: Iterable[str]) -> None:
        """Note a request."""
        self._on.update(settings)

    def look(self, now_mb: float | None = None) -> None:
        """Compare with the last rest."""
        now_mb = held_mb() if now_mb is None else now_mb
        if self._first_mb is None:
            self._first_mb = now_mb
        else:
            on = ", ".join(f"{name} in {count}" for name, count in self._on.most_common())
            self._growths.append((now_mb - self._last_mb, on or "nothing asked for"))
        self._last_mb = now_mb
        self._on.clear()

    def complaints(self) -> list[str]:
        """Return an error with the largest growth, if the total growth exceeds the limit."""
        if self.grown_mb <= MOST_MB:
            return []
        most = sorted(self._growths, reverse=True)[:3]
        return [f"memory grew by {mb:,.0f} MB while edits had: {on}" for mb, on in most]

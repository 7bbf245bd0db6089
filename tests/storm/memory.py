"""Whether the job's memory grows from rest to rest, and what was asked for where it did."""

from __future__ import annotations

import ctypes
from collections import Counter
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_MB = 200.0
"""What each kind of window needs once stays: code, the buffers of a profiler."""


class _Heaps(ctypes.Structure):
    """What ``mallinfo2`` returns: malloc.h."""

    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in _names.split())


def held_mb() -> float:
    """Return what is resident and not free, in MB (10^6 bytes).

    malloc keeps what was freed between what was not: over 20,000 steps and 900 edits that came to
    130 MB, of other sizes in each run, while what was held grew by 17.
    """
    tell = ctypes.CDLL(None).mallinfo2
    tell.restype = _Heaps
    return float(psutil.Process().memory_info().rss - tell().fordblks) / 1e6


class MemoryGuard:
    """Looks at each rest, when nothing is recorded."""

    def __init__(self) -> None:
        self._first_mb: float | None = None
        self._last_mb = 0.0
        self._on: Counter[str] = Counter()
        self._growths: list[tuple[float, str]] = []

    @property
    def grown_mb(self) -> float:
        """By how much it has grown since the first rest, in MB (10^6 bytes)."""
        return self._last_mb - (self._last_mb if self._first_mb is None else self._first_mb)

    def note(self, settings: Iterable[str]) -> None:
        """Note what was asked for."""
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
        """Return what is wrong: where it grew most, if it grew too much in all."""
        if self.grown_mb <= MOST_MB:
            return []
        most = sorted(self._growths, reverse=True)[:3]
        return [f"memory grew by {mb:,.0f} MB while edits had: {on}" for mb, on in most]

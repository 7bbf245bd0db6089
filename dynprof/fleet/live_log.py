"""The newest records of a job's log, which all browsers share."""

from __future__ import annotations

import heapq
import secrets
import threading
import time
from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from dynprof.journal.log_reading import LogTail, SharedChanges, log_paths

if TYPE_CHECKING:
    from pathlib import Path

MAX_RECORDS, MAX_RECORD = 500, 4000
"""Records that are kept of a job, the newest, and characters of each."""
POLL_S = 1.0
"""Seconds between two looks at the logs."""
FIRST_BYTES, MIN_BYTES = 4 << 20, 2048
"""Bytes of all logs that the first look reads, and of each at least."""
MAX_JOBS = 16
"""Jobs whose logs are kept, those that were looked at last."""

MAX_DIGITS = 18
"""Digits of the number of a record that a browser has seen; Python converts 4,300 at most."""

Numbered = tuple[int, str]
"""A record with its number, from 1."""


class LiveLog:
    """The log of one job."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records: deque[Numbered] = deque(maxlen=MAX_RECORDS)
        self._tails: dict[Path, LogTail] = {}
        self._sizes: dict[Path, int] = {}
        self._shared = SharedChanges()
        self._lock, self._read_s, self._count = threading.Lock(), float("-inf"), 0
        self._own = secrets.token_hex(4)  # numbers begin again after a restart of the server

    def id_of(self, number: int) -> str:
        """Return the name of a record, for :meth:`number_of`."""
        return f"{self._own}-{number}"

    def number_of(self, name: str) -> int:
        """Return the number of a record; 0 if it was not named by this object."""
        own, _, number = name.partition("-")
        is_number = number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS
        return int(number) if own == self._own and is_number else 0

    def after(self, number: int) -> list[Numbered]:
        """Return the records after one, the oldest first."""
        with self._lock:
            if time.monotonic() - self._read_s >= POLL_S:
                self._read()
                self._read_s = time.monotonic()
            return [one for one in self._records if one[0] > number]

    def _read(self) -> None:
        paths = log_paths(self._directory)
        newest_bytes = max(MIN_BYTES, FIRST_BYTES // max(1, len(paths)))
        grown = []
        for gone in self._tails.keys() - set(paths):
            del self._tails[gone], self._sizes[gone]
        for path in paths:
            size = _size(path)
            if path not in self._tails:
                self._tails[path] = LogTail(path, None if self._read_s > 0 else newest_bytes)
            if self._sizes.get(path) != size:
                self._sizes[path] = size
                grown.append(self._tails[path])
        fresh = self._shared.fold(
            deque(heapq.merge(*(tail.records() for tail in grown)), maxlen=MAX_RECORDS)
        )
        for record in fresh:
            self._count += 1
            self._records.append((self._count, record[:MAX_RECORD]))


def _size(path: Path) -> int:
    try:
        return path.stat(follow_symlinks=False).st_size
    except OSError:
        return -1


class LiveLogs:
    """The logs of the jobs that are looked at."""

    def __init__(self) -> None:
        self._logs: OrderedDict[Path, LiveLog] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, directory: Path) -> LiveLog:
        """Return the log of a job."""
        with self._lock:
            log = self._logs.setdefault(directory, LiveLog(directory))
            self._logs.move_to_end(directory)
            if len(self._logs) > MAX_JOBS:
                self._logs.popitem(last=False)
            return log

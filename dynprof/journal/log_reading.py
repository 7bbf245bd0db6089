"""Reads the logs of a job, as its ranks write them.

:class:`LogTail` reads one log from where the last read ended, and :class:`SharedChanges` leaves out
what several ranks have logged alike.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.journal.history import CHANGED, DAY_S
from dynprof.journal.journal import LOG_BYTES
from dynprof.journal.pace_changes import PaceChange
from dynprof.runtime.layout import LOG_DIR
from dynprof.runtime.plural import listed_ranks
from dynprof.runtime.safe_open import open_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

READ_BYTES = 8 * LOG_BYTES
"""Bytes read from a log at a time; a log that dynprof writes is never this large."""
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} (\w+)")
"""The start of a record: its time and level."""
_LOGGED = re.compile(
    r"(?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\.\d{3} \w+ +(?P<role>\S+ )??rank (?P<rank>\d+)  "
    + re.escape(CHANGED)
    + r"(?P<before>[\d.,e+]+ m?s) a step until (?P<until>[-:\d ]+) \(step [\d,]+\), "
    r"(?P<after>[\d.,e+]+ m?s) since"
)
"""The log's line about a change of the pace."""


def log_paths(directory: Path) -> list[Path]:
    """Return the logs of a config's directory."""
    return sorted((directory / LOG_DIR).glob("dp_*.log"))


def rotated_paths(directory: Path) -> list[Path]:
    """Return its older logs, the oldest first."""
    return sorted((directory / LOG_DIR).glob("dp_*.log.[0-9]*"), reverse=True)


class LogTail:
    """Reads the new records of a log, from where the last read ended.

    Args:
        path: The log.
        newest_bytes: How much the first read returns of its end; all by default.
    """

    def __init__(self, path: Path, newest_bytes: int | None = None) -> None:
        self._path = path
        self._at = 0
        self._inode = 0
        self._newest_bytes = newest_bytes

    def records(self) -> Iterator[str]:
        """Yield complete records, each with its continuation lines."""
        text = b""
        try:
            with open_inside(self._path, linked_folder=True) as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._at:
                    text = self._rest_of_rotated()  # a new file has this name
                    self._inode, self._at = facts.st_ino, 0
                if self._newest_bytes is not None:
                    self._at = max(0, facts.st_size - self._newest_bytes)
                    file.seek(self._at)
                    self._at += len(file.readline(READ_BYTES)) if self._at else 0
                    self._newest_bytes = None
                file.seek(self._at)
                fresh = file.read(READ_BYTES)
        except OSError:
            return
        self._at += fresh.rfind(b"\n") + 1
        text += fresh
        whole = text[: text.rfind(b"\n") + 1]
        record = ""
        for line in whole.decode("utf-8", "replace").splitlines():
            if LINE.match(line) and record:
                yield record
                record = ""
            record += f"\n{line}" if record else line
        if record:
            yield record

    def _rest_of_rotated(self) -> bytes:
        """Return what was written after the last read and before the file was rotated."""
        rotated = Path(f"{self._path}.1")
        with contextlib.suppress(OSError), open_inside(rotated, linked_folder=True) as file:
            if os.fstat(file.fileno()).st_ino == self._inode:
                file.seek(self._at)
                return file.read(READ_BYTES)
        return b""


class SharedChanges:
    """Prints a change of the pace once, although each rank that steps with others logs it."""

    def __init__(self) -> None:
        self._shown: list[tuple[PaceChange, str, str]] = []  # with its role and rank

    def fold(self, records: Iterable[str]) -> list[str]:
        """Return records of logs without changes that a record of another rank has.

        The record that stays names the other ranks, as far as they are among ``records``.
        """
        kept: list[str] = []
        places: dict[int, tuple[int, list[int]]] = {}  # by the number of a change
        for record in records:
            number, rank = self._number(record)
            if number is None:
                kept.append(record)
            elif rank == self._shown[number][2]:
                places[number] = len(kept), []
                kept.append(record)
            elif number in places:
                places[number][1].append(int(rank))
        for place, ranks in places.values():
            kept[place] += f"; {listed_ranks(ranks)} too" if ranks else ""
        return kept

    def _number(self, record: str) -> tuple[int | None, str]:
        """Return the number of the change that a record is about, and its rank."""
        change, words = None, _LOGGED.match(record)
        with contextlib.suppress(ValueError, OverflowError):  # another user may have written it
            change = _logged(words) if words else None
        if change is None or words is None:
            return None, ""
        role, rank = words["role"] or "", words["rank"]
        for number, (shown, of_role, _) in enumerate(self._shown):
            if role == of_role and shown.is_same(change):
                return number, rank
        self._shown.append((change, role, rank))
        return len(self._shown) - 1, rank


def _logged(words: re.Match[str]) -> PaceChange:
    """Return the change that a log's line is about; its step is left out."""
    until = words["until"] if "-" in words["until"] else f"{words['when'][:10]} {words['until']}"
    at_s, logged_s = (
        time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S")) for text in (until, words["when"])
    )
    before_ms, after_ms = (
        float(number.replace(",", "")) * (1e3 if unit == "s" else 1)
        for number, unit in (words[name].split() for name in ("before", "after"))
    )
    return PaceChange(at_s - DAY_S if at_s > logged_s else at_s, 0, before_ms, after_ms)

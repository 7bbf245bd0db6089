"""Readings of a file -> edits: tells a save from a half-written file and from an echo."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynprof.config.file_reading import Source, read_source
from dynprof.config.jsontext import MAX_DEPTH, read_json
from dynprof.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathlib import Path

HALF_WRITTEN_S = 1.0
"""Time for which a file may be missing, cut off or unreadable before an error message says so."""
DEBOUNCE_S = 0.01
"""Debounce of saves: the same bytes again within this time are one save, as some editors write
twice."""

LATEST_S = 253_370_764_800.0
"""The begin of the year 9999: a later time, or one before 1970, is none that a save can have."""


@dataclass(frozen=True)
class Edit:
    """One save of the config.

    Attributes:
        raw: The bytes saved; empty where they could not be read.
        edited_at_s: Time of the save, in seconds since the epoch; a file may have any, and another
            machine's clock as well: what is no time of a save becomes the nearest that is.
        problems: Why the bytes could not be read.
        file: Where it was saved, if not in the watched config.
        owner: The id of the user who owns the file; None where it came from another rank.
        is_received: Whether another process sent it, over the job's store.
    """

    raw: bytes
    edited_at_s: float
    problems: tuple[Problem, ...] = ()
    file: Path | None = None
    owner: int | None = None
    is_received: bool = False

    def __post_init__(self) -> None:
        """Keep a time that can be shown, and be part of a folder's name."""
        at_s = min(max(0.0, self.edited_at_s), LATEST_S)  # 0 as well where it is no number
        object.__setattr__(self, "edited_at_s", at_s)

    @property
    def text(self) -> str:
        """What was saved, as text; bytes that are none are replaced."""
        return self.raw.decode(errors="replace")


@dataclass(frozen=True)
class Unread:
    """Why the file was not read, and which save that concerns.

    Attributes:
        problems: The reasons.
        inode: The serial number of what is in the file's place; 0 where nothing is known of it.
        mtime_ns: Its time of writing, in ns since the epoch: each refused save is an edit.
    """

    problems: tuple[Problem, ...]
    inode: int = 0
    mtime_ns: int = 0


Reading = Source | Unread
"""What lies in the place of the file: its content, or why there is none."""
GONE = Unread((Problem("the file is gone; nothing changes until it is saved again."),))


def read(path: Path, *, follow_symlinks: bool = False, is_watched: bool = True) -> Reading:
    """Read the file once; what hinders that is an answer too.

    Args:
        path: The file.
        follow_symlinks: Read it through a symbolic link.
        is_watched: Its directory must be the job's user's or root's; else the script has named it.
    """
    try:
        return read_source(path, follow_symlinks=follow_symlinks, as_job=is_watched)
    except FileNotFoundError:
        return GONE
    except ConfigError as error:
        return _unread(path, error, follow_symlinks=follow_symlinks)


def _unread(path: Path, error: ConfigError, *, follow_symlinks: bool) -> Unread:
    try:
        facts = path.stat(follow_symlinks=follow_symlinks)
    except OSError:
        return Unread(error.problems)
    return Unread(error.problems, facts.st_ino, facts.st_mtime_ns)


def edit_from(reading: Reading, at_s: float, file: Path | None) -> Edit:
    """Return what a script asks for that has the config, or a file of its own, read right now."""
    if isinstance(reading, Source):
        return Edit(reading.raw, at_s, file=file, owner=reading.owner)
    problems = reading.problems
    if reading is GONE and file:  # it may never have been there
        text = f"there is no file {file}, so start() opens nothing; give it the path of a config."
        problems = (Problem(text),)
    return Edit(b"", at_s, problems, file)


class EditDetector:
    """Tells saves from readings; knows no thread, no clock and no file.

    A reading that differs from the last in bytes, inode or time of writing is a save; the vendor
    goes by the time as well, so that a touch repeats the request. One that is cut off, missing or
    unreadable is held back until it has stayed so for ``HALF_WRITTEN_S``.

    Args:
        at_start: What lay there when watching began; it is never an edit.
        started_ns: When that was, in ns since the epoch; a file that could not be read then is
            none either.
    """

    def __init__(self, at_start: Reading, started_ns: int = 0) -> None:
        self._last = at_start
        self._last_file = at_start if isinstance(at_start, Source) else None
        self._started_ns = started_ns if at_start is not GONE else 0
        self._changed_at_s = 0.0
        self._is_pending = False
        self._delivered: tuple[float, bytes] | None = None

    @property
    def is_pending(self) -> bool:
        """Whether to read again soon, as something unfinished was seen."""
        return self._is_pending

    def observe(self, reading: Reading, now_s: float, wall_s: float) -> Edit | None:
        """Return the edit that ``reading`` completes, if it does.

        Args:
            reading: What lies there now.
            now_s: Monotonic time in seconds.
            wall_s: Time since the epoch in seconds, for an edit without a file.
        """
        if reading != self._last:
            self._last, self._changed_at_s = reading, now_s
            self._is_pending = not _is_whole(reading)
            return None if self._is_pending else self._deliver(reading, now_s, wall_s)
        if self._is_pending and now_s - self._changed_at_s >= HALF_WRITTEN_S:
            self._is_pending = False
            return self._deliver(reading, now_s, wall_s)
        return None

    def _deliver(self, reading: Reading, now_s: float, wall_s: float) -> Edit | None:
        if isinstance(reading, Unread):
            return Edit(b"", wall_s, reading.problems)
        if self._is_old(reading):
            return None
        before, self._delivered = self._delivered, (now_s, reading.raw)
        if before and before[1] == reading.raw and now_s - before[0] < DEBOUNCE_S:
            return None
        saved_ns = max(reading.mtime_ns, reading.ctime_ns)  # cp -p brings an old time of writing
        return Edit(reading.raw, saved_ns / 1e9, owner=reading.owner)

    def _is_old(self, reading: Source) -> bool:
        """Tell a file that only came back, or was there at the start but could not be read."""
        before, self._last_file = self._last_file, reading
        unread_at_start = before is None and reading.mtime_ns < self._started_ns
        return reading == before or unread_at_start


def _is_whole(reading: Reading) -> bool:
    """Tell a finished file from one that an editor may still be writing.

    What may be nested deeply is left to the reader that ends there: ``json`` goes as deep as the
    job's ``sys.setrecursionlimit()`` lets it, which may be deeper than a stack, and ends the job.
    """
    if isinstance(reading, Unread):
        return False
    try:
        text = reading.raw.decode("utf-8-sig")
        if text.count("[") + text.count("{") > MAX_DEPTH:
            return not read_json(text).problems
        json.loads(text)
    except (ValueError, ConfigError, RecursionError):
        return False
    return True

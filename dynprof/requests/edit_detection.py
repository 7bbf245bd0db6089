"""Edits: one for each save of the file, and one for each baseline that is due.

Readings of the file become edits by debounce, without half-written files and repeats. The request
for baselines repeats until a cancel. Each repetition is an edit with the bytes of the save that
asked for it. So the ranks agree on it, and the disk and the other limits are checked, as for any
other save.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynprof.config import Source, parse_config, read_source
from dynprof.config.jsontext import MAX_DEPTH, read_json
from dynprof.errors import ConfigError, Problem
from dynprof.requests.request import Edit
from dynprof.runtime.layout import BASELINES_NAME
from dynprof.runtime.safe_write import remove, write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.config import Every, ProfilerConfig
    from dynprof.runtime.clock import Clock

HALF_WRITTEN_S = 1.0
"""Seconds for which a file may be missing, cut off or unreadable before an error is reported."""
DEBOUNCE_S = 0.01
"""Seconds within which the same bytes count as one save: some editors write twice."""


@dataclass(frozen=True)
class Unread:
    """Why the file was not read, and which save this is.

    Attributes:
        problems: The reasons.
        inode: Inode number of the file; 0 if unknown.
        mtime_ns: Its modification time, in ns since the epoch: each refused save is an edit.
    """

    problems: tuple[Problem, ...]
    inode: int = 0
    mtime_ns: int = 0


Reading = Source | Unread
"""One reading of the file: its content, or why there is none."""
GONE = Unread((Problem("the file is gone; nothing changes until it is saved again."),))


def read(path: Path, *, follow_symlinks: bool = False, is_watched: bool = True) -> Reading:
    """Read the file once; return the content, or why it could not be read.

    Args:
        path: The file.
        follow_symlinks: Read it through a symbolic link.
        is_watched: It is in the watched directory, which must belong to the job's user or root. If
            not, the script has named the file.
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
    """Return the edit of a script that calls ``start()`` with the config or another file."""
    if isinstance(reading, Source):
        return Edit(reading.raw, at_s, file=file, owner=reading.owner)
    problems = reading.problems
    if reading is GONE and file:  # it may never have existed
        text = f"there is no file {file}, so start() opens nothing; give it the path of a config."
        problems = (Problem(text),)
    return Edit(b"", at_s, problems, file)


class EditDetector:
    """Detects saves in a series of readings; it uses no thread, no clock and no file.

    A reading that differs from the last one in bytes, inode or modification time is a save. The
    vendor also uses this time, so that a touch repeats the request. A reading that is cut off,
    missing or unreadable is held back until it has stayed so for ``HALF_WRITTEN_S``.

    Args:
        at_start: The reading when watching began; it is never an edit.
        started_ns: Time of that reading, in ns since the epoch. A file that could not be read then
            is not an edit either.
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
        """Whether to read again soon, because the last reading was not complete."""
        return self._is_pending

    def observe(self, reading: Reading, now_s: float, wall_s: float) -> Edit | None:
        """Return the edit that ``reading`` completes; None if it completes none.

        Args:
            reading: The newest reading.
            now_s: Monotonic time in seconds.
            wall_s: Seconds since the epoch, for an edit without a file.
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
        saved_ns = max(reading.mtime_ns, reading.ctime_ns)  # cp -p keeps an old modification time
        return Edit(reading.raw, saved_ns / 1e9, owner=reading.owner)

    def _is_old(self, reading: Source) -> bool:
        """Return whether the file only came back, or existed unreadable at the start."""
        before, self._last_file = self._last_file, reading
        unread_at_start = before is None and reading.mtime_ns < self._started_ns
        return reading == before or unread_at_start


def _is_whole(reading: Reading) -> bool:
    """Return whether a file is complete; an editor may still be writing it.

    Deeply nested text goes to the reader with a depth limit. ``json`` recurses as deep as the job's
    ``sys.setrecursionlimit()`` allows. That can overflow the stack and kill the job.
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


MIN_WAIT_S = 0.05
"""Seconds between two checks whether a baseline is due, at least: the watcher also reads a file."""


@dataclass(frozen=True)
class _Due:
    """The next baseline.

    Attributes:
        raw: The bytes of the config that asks for it.
        every: The interval.
        at: When it is due: monotonic seconds, or a step.
    """

    raw: bytes
    every: Every
    at: float

    def after(self, now: float) -> _Due:
        """Return the one after it; intervals that have passed are left out."""
        missed = max(0.0, now - self.at) // interval(self.every)
        return replace(self, at=self.at + (missed + 1) * interval(self.every))


def interval(every: Every) -> float:
    """Return the interval in seconds, or in steps."""
    return every.steps or every.seconds


class Repetition:
    """Says when the next baseline is due.

    The save is kept in a file next to the config: a later request changes the config, and baselines
    have to continue in the next run of the job.

    Args:
        root: The directory of the config.
        clock: The clock.
        step: Returns the number of the running step.

    Attributes:
        kept: Number of baselines of this rank with a trace on the disk; None before this process
            saved one.
    """

    def __init__(self, root: Path, clock: Clock, step: Callable[[], int]) -> None:
        self._path, self._clock, self._step = root / BASELINES_NAME, clock, step
        self._next: _Due | None = None
        self._lock = threading.RLock()  # ranks that agree cancel on another thread
        self.kept: int | None = None

    def __str__(self) -> str:
        """Return ``baseline every 30 min, next at 01:30; 3 kept``; empty if none is requested."""
        if (due := self._next) is None:
            return ""
        if due.every.steps:
            when = f"step {due.at:,.0f}"
        else:
            wall_s = self._clock.wall_s() + due.at - self._clock.now_s()
            form = "%H:%M" if interval(due.every) >= 60 else "%H:%M:%S"
            when = time.strftime(form, time.localtime(round(wall_s)))
        kept = "" if self.kept is None else f"; {self.kept} kept"
        return f"baseline {due.every}, next at {when}{kept}"

    def begin(self, raw: bytes, every: Every, share: float = 0.0) -> None:
        """Repeat a request from one interval after now.

        Args:
            raw: The bytes of its config.
            every: The interval.
            share: Part of the interval by which this rank is later: ranks that do not agree record
                one after the other.

        Raises:
            OSError: The order cannot be kept for the next run.
        """
        with self._lock:
            now = self._now(every)
            self._next = _Due(raw, every, now + (1 + share) * interval(every))
        kept = self._kept()
        if not (isinstance(kept, Source) and kept.raw == raw):
            write_atomic(self._path, raw)

    def resume(self, at_start: Reading, share: float = 0.0) -> None:
        """Continue the baselines that the config asks for, or that were requested before a restart.

        Args:
            at_start: The config as it was at the start.
            share: As in :meth:`begin`.

        Raises:
            OSError: As in :meth:`begin`.
        """
        config = _config_in(at_start)
        if config and config.cancel:
            self.end()
            return
        source = at_start if config and config.every else self._kept()
        asked = _config_in(source)
        if isinstance(source, Source) and asked and asked.every:
            self.begin(source.raw, asked.every, share)

    def _kept(self) -> Reading:
        return read(self._path)

    def end(self) -> Every | None:
        """Repeat no more; return the interval of the repetition, if there was one."""
        with self._lock:
            last, self._next = self._next, None
        with contextlib.suppress(FileNotFoundError):
            remove(self._path)
        return last.every if last else None

    def wait_s(self) -> float:
        """Return the seconds until the next baseline; infinity if it depends on steps."""
        due = self._next
        if due is None or due.every.steps:
            return float("inf")
        return max(MIN_WAIT_S, due.at - self._clock.now_s())

    def due(self) -> Edit | None:
        """Return the edit of a baseline if its time has come, once."""
        with self._lock:
            due = self._next
            if due is None or (now := self._now(due.every)) < due.at:
                return None
            self._next = due.after(now)
        return Edit(due.raw, self._clock.wall_s(), is_own=True, is_repeated=True)

    def _now(self, every: Every) -> float:
        return float(self._step()) if every.steps else self._clock.now_s()


def _config_in(reading: Reading) -> ProfilerConfig | None:
    """Return the config of a reading; None if it cannot be read or used."""
    with contextlib.suppress(ConfigError):
        return parse_config(reading.raw).config if isinstance(reading, Source) else None
    return None

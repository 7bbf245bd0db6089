"""One process of a machine polls a file for all of its processes.

So each host queries a network file system once, not once per rank. The polling process publishes
what it has seen, and when, in a small file in the machine's memory that only its user may access.
The other processes poll too only if that differs from what they have seen. If nothing is
published for :data:`SILENT_S`, the first process to notice takes over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from dynprof.runtime.safe_open import read_regular
from dynprof.runtime.safe_write import write_atomic

SILENT_S = 3.0
"""Longest silence of the polling process before another takes over, in seconds."""
REPUBLISH_S = 0.25
"""Least interval between publications of an unchanged state, in seconds."""
STALE_S = 3600.0
"""Age from which a notice counts as that of an ended process, in seconds."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - only a private folder below it is used
_MAX_BYTES = 1000
"""Bytes of a notice, at most; another process may have written the file."""


class Notice(NamedTuple):
    """The last publication of the polling process.

    Attributes:
        poller: The name of the process.
        at_s: The time, by the machine's monotonic clock.
        seen: The state that it saw, or a digest of it.
    """

    poller: str
    at_s: float
    seen: str


class SharedPolling:
    """One process's view of who polls.

    Args:
        at: The path that is polled, the same in all processes and unique to them.
        folder: Where the notices are; by default in the machine's memory.
    """

    def __init__(self, at: str, folder: Path | None = None) -> None:
        self._name = secrets.token_hex(8)
        place = folder or _own_folder()
        named = hashlib.sha256(os.fsencode(at)).hexdigest()[:32]
        self._notice_path = place / named if place else None
        self._seen = ""
        self._polls = True
        self._published: Notice | None = None
        self._read: tuple[tuple[int, int], Notice | None] | None = None

    def other_poller(self) -> Notice | None:
        """Return the notice of another polling process; None if this process must poll."""
        last = self._last_notice()
        if last and (last.poller == self._name or not 0 <= _now_s() - last.at_s <= SILENT_S):
            last = None
        self._polls = last is None
        return last

    def is_up_to_date(self) -> bool:
        """Return whether another process polls, and has seen the same state as this one."""
        last = self.other_poller()
        return last is not None and last.seen == self._seen

    def report_seen(self, what: str) -> None:
        """Store the state that this process has seen; publish it if this process polls for all."""
        self._seen = what
        if not self._polls or self._notice_path is None:
            return
        said, now_s = self._published, _now_s()
        if said and said.seen == what and now_s < said.at_s + REPUBLISH_S:
            return
        with contextlib.suppress(OSError):  # then each process polls
            if said is None:
                _remove_left_over(self._notice_path.parent)
            self._published = Notice(self._name, now_s, what)
            write_atomic(self._notice_path, json.dumps(self._published))

    def end(self) -> bool:
        """Let another process take over at once; return whether this one was polling for all."""
        last = self._last_notice()
        if last is None or self._notice_path is None or last.poller != self._name:
            return False
        self._notice_path.unlink(missing_ok=True)
        return True

    def _last_notice(self) -> Notice | None:
        """Return the notice; read the file only if it was replaced since the last read."""
        if self._notice_path is None:
            return None
        try:
            facts = self._notice_path.lstat()
            version = facts.st_ino, facts.st_mtime_ns
            if self._read is None or self._read[0] != version:
                self._read = version, _notice(self._notice_path)
            return self._read[1]
        except OSError:
            return None


def _notice(path: Path) -> Notice | None:
    try:
        poller, at_s, seen = json.loads(read_regular(path, _MAX_BYTES))
        return Notice(str(poller), float(at_s), str(seen))
    except (ValueError, TypeError):
        return None


def _remove_left_over(folder: Path) -> None:
    """Remove notices of killed processes, which take the machine's memory."""
    before_s = time.time() - STALE_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < before_s:
                path.unlink()


def _now_s() -> float:
    return time.monotonic()


def _user() -> int:
    """Return the user's number outside of user namespaces, which share the memory."""
    own = os.geteuid()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
            inside, outside, count = map(int, line.split())
            if inside <= own < inside + count:
                return outside + own - inside
    return own


def _own_folder() -> Path | None:
    """Return a folder on this machine that only this user may use; None if there is none."""
    try:  # there may be no folder for temporary files at all
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else Path(tempfile.gettempdir())
        folder = memory / f"dynprof-{_user()}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        facts = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
    return folder if own and not facts.st_mode & 0o077 else None

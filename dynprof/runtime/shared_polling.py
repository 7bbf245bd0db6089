"""Of the processes of one machine that look at something again and again, one does for all.

A network file system is asked by the hosts, not by each of their ranks. Who looks says so in a
small file in the machine's memory, that only its user may touch: what it has seen, and when. The
others look as well only once that differs from what they have seen, or nothing was said for
:data:`SILENT_S`: then the first of them goes on in its place.
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

from dynprof.runtime.output import write_atomic
from dynprof.runtime.safe_open import read_regular

SILENT_S = 3.0
"""For so long the one that looks may say nothing before another does."""
REPUBLISH_S = 0.25
"""What it has seen and not changed is said so often at most."""
STALE_S = 3600.0
"""What nobody has touched for so long is of processes that are no more."""
_MEMORY = Path("/dev/shm")  # noqa: S108 - below it a folder that nobody else may look into
_MOST_BYTES = 1000


class Notice(NamedTuple):
    """What the process that looks has said last.

    Attributes:
        poller: Its name.
        at_s: When, by the machine's monotonic clock.
        seen: What it saw, or what stands for that.
    """

    poller: str
    at_s: float
    seen: str


class SharedPolling:
    """What one process knows of who looks.

    Args:
        at: What they look at, the same on all and nowhere else.
        folder: Where notices lie; without it, in the machine's memory.
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
        """Return what another process has said that looks; None where this one is to look."""
        last = self._last_notice()
        if last and (last.poller == self._name or not 0 <= _now_s() - last.at_s <= SILENT_S):
            last = None
        self._polls = last is None
        return last

    def is_up_to_date(self) -> bool:
        """Return whether another process looks, and has seen what this one has."""
        last = self.other_poller()
        return last is not None and last.seen == self._seen

    def report_seen(self, what: str) -> None:
        """Know what this process has seen; tell the others, where it looks for them."""
        self._seen = what
        if not self._polls or self._notice_path is None:
            return
        said, now_s = self._published, _now_s()
        if said and said.seen == what and now_s < said.at_s + REPUBLISH_S:
            return
        with contextlib.suppress(OSError):  # then each looks for itself
            if said is None:
                _remove_left_over(self._notice_path.parent)
            self._published = Notice(self._name, now_s, what)
            write_atomic(self._notice_path, json.dumps(self._published))

    def end(self) -> bool:
        """Leave it to another at once; return whether this one has looked for all."""
        last = self._last_notice()
        if last is None or self._notice_path is None or last.poller != self._name:
            return False
        self._notice_path.unlink(missing_ok=True)
        return True

    def _last_notice(self) -> Notice | None:
        """Read the notice, where another has been put in its place since it was read last."""
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
        poller, at_s, seen = json.loads(read_regular(path, _MOST_BYTES))
        return Notice(str(poller), float(at_s), str(seen))
    except (ValueError, TypeError):
        return None


def _remove_left_over(folder: Path) -> None:
    """Remove what processes have left that were killed: it takes memory of the machine."""
    before_s = time.time() - STALE_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < before_s:
                path.unlink()


def _now_s() -> float:
    return time.monotonic()


def _user() -> int:
    """Return the user's number outside of a user namespace, which has the same memory."""
    own = os.geteuid()
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
            inside, outside, count = map(int, line.split())
            if inside <= own < inside + count:
                return outside + own - inside
    return own


def _own_folder() -> Path | None:
    """Return a folder of this machine that only this user may use, or nothing."""
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

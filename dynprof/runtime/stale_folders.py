"""Folders of unfinished work: a live process locks its own, a dead one's are removed."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import json
import os
import stat
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.runtime.folders import opened
from dynprof.runtime.output import MARK, remove, remove_private, write_if_absent
from dynprof.runtime.safe_open import read_regular
from dynprof.runtime.who_may_change import who_else_may_change

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD_S = 60.0
"""A capture younger than this may be about to be sent by the process that saved it."""

_PAUSE_S = 0.02
"""Between two looks at a lock that somebody else holds."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
"""How a folder is opened: anything else in its place is refused at once, without waiting."""
_IN_SCRIPTS_FOLDERS = (
    ".{}_*.recording",
    "info/.{}_*.saving",
    "*_ascend_pt/info/.{}_*.saving",
)
_UNFINISHED = (
    ".{}_*.recording",
    "*/.{}_*.recording",
    "*/*/.{}_*.recording",
    "step_*/info/.{}_*.saving",
    "*/step_*/info/.{}_*.saving",
    "*/*/step_*/info/.{}_*.saving",
)
"""Captures lie in the directory, in one below it, or are put together in a process's own there."""


@contextlib.contextmanager
def folder_lock(folder: Path, *, patience_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock on a folder; the system lets go of it when the process dies, however it does.

    Gives False where somebody else holds it. Where the file system has no locks, nothing there is
    ever taken for a leftover.

    Args:
        folder: The lock is on itself; nothing is written there.
        patience_s: How long to wait for who holds it, in seconds.
    """
    descriptor = opened(folder, _FOLDER)
    try:
        until_s = time.monotonic() + patience_s
        while not (acquired := _lock(descriptor)) and time.monotonic() < until_s:
            time.sleep(_PAUSE_S)
        yield acquired
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # no locks there
        pass
    return True


def is_unlocked(folder: Path) -> bool:
    """Return whether it is certain that nobody holds the lock on a folder."""
    try:
        descriptor = opened(folder, _FOLDER)
    except OSError:  # a link, a FIFO, a file: nobody of ours made it
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # somebody lives, or nobody can tell
        return False
    finally:
        os.close(descriptor)
    return True


def remove_leftovers(places: tuple[Path, ...], host: str, *, deep: bool = True) -> list[Path]:
    """Remove what killed processes of this machine left in these directories and captures.

    Only of this machine: a lock on a network disk need not be known to another.

    Args:
        places: Directories in which captures lie.
        host: The name of this machine.
        deep: Whether they are those of operators' windows, which have folders; else of a script.

    Returns:
        What was removed.
    """
    patterns = [
        pattern.format(glob.escape(host))
        for pattern in (_UNFINISHED if deep else _IN_SCRIPTS_FOLDERS)
    ]
    found = {path for place in places for pattern in patterns for path in matches(place, pattern)}
    return [path for path in sorted(found) if _is_left(path) and remove_private(path)]


def matches(place: Path, pattern: str) -> list[Path]:
    """Return what a pattern finds; nothing where folders vanish meanwhile."""
    try:
        return list(place.glob(pattern))
    except OSError:
        return []


def _is_left(folder: Path) -> bool:
    """Return whether its process is gone: one that is being made has no mark before its lock."""
    return os.path.lexists(folder / MARK) and is_unlocked(folder)


_NOTE = ".scratch_dir_"
MOST = 16
"""So many are known, those that were used last."""
_MAX_BYTES = 1 << 16


def note_scratch(root: Path, place: Path) -> None:
    """Note beside a config that captures of its jobs are put together in a directory.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(str(place))
    path = root / f"{_NOTE}{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    # What others may change would not be believed.
    if not write_if_absent(path, text, mode=0o600):
        with contextlib.suppress(PermissionError):  # another user's, who alone may believe it
            os.utime(path, follow_symlinks=False)
    for old in _notes(root)[MOST:]:
        with contextlib.suppress(OSError):
            remove(old)


def staging_dirs(root: Path) -> list[Path]:
    """Return the folders of single processes in the scratch directories that are noted.

    Nobody else than the calling user may have written the note or made the folder: a scratch
    directory is one of all users, and what they put there is none of this directory's.
    """
    return [folder for note in _notes(root)[:MOST] for folder in _staging_dirs(note)]


def _notes(root: Path) -> list[Path]:
    """Return all notes, the newest first."""
    ages = {}
    with contextlib.suppress(OSError):
        for path in root.glob(f"{_NOTE}*"):
            with contextlib.suppress(OSError):
                ages[path] = path.lstat().st_mtime
    return sorted(ages, key=lambda path: -ages[path])


def _staging_dirs(note: Path) -> list[Path]:
    if who_else_may_change(note):
        return []
    try:
        place = Path(str(json.loads(read_regular(note, _MAX_BYTES))))
        return [folder for folder in sorted(place.glob("*_*.*rank*")) if _is_own(folder)]
    except (OSError, ValueError):  # it is gone, on another machine, or not mounted
        return []


def _is_own(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        facts = folder.lstat()
        return stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
    return False

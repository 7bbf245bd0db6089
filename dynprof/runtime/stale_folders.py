"""Folders of unfinished work: a live process locks its own; those of dead ones are removed."""

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

from dynprof.runtime.permissions import who_else_may_change
from dynprof.runtime.safe_open import opened, read_regular
from dynprof.runtime.safe_write import MARK, remove, remove_private, write_if_absent

if TYPE_CHECKING:
    from collections.abc import Iterator

OLD_S = 60.0
"""Age in seconds up to which the process that saved a capture may still be about to send it."""

_PAUSE_S = 0.02
"""Pause between tries for a lock that another process holds, in seconds."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
"""Flags for a folder: anything else in its place is refused at once, without waiting."""
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
"""Captures are in the directory, in one below it, or in a process's own staging folder there."""
_NOTE = ".scratch_dir_"
MAX_NOTES = 16
"""How many notes are kept, the most recently used ones."""
_MAX_BYTES = 1 << 16
"""Bytes that are read of a note; a note is never this large."""


@contextlib.contextmanager
def folder_lock(folder: Path, *, patience_s: float = 0.0) -> Iterator[bool]:
    """Lock a folder; the system releases the lock when the process dies for any reason.

    Gives False if another process holds the lock. On a file system without locks, no folder ever
    counts as a leftover.

    Args:
        folder: The folder itself is locked; no lock file is written.
        patience_s: How long to wait for the lock, in seconds.
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
    except OSError:  # the file system has no locks
        pass
    return True


def is_unlocked(folder: Path) -> bool:
    """Return whether it is certain that no process holds the lock on a folder."""
    try:
        descriptor = opened(folder, _FOLDER)
    except OSError:  # a link, a FIFO, a file: not made by dynprof
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a process holds it, or the file system has no locks
        return False
    finally:
        os.close(descriptor)
    return True


def remove_leftovers(places: tuple[Path, ...], host: str, *, deep: bool = True) -> list[Path]:
    """Remove leftovers of killed processes of this machine from directories and captures.

    Leftovers of other machines stay: their locks on a network disk may not be visible here.

    Args:
        places: Directories that have captures.
        host: The name of this machine.
        deep: Whether they have operators' windows, each in a folder; False for a script's.

    Returns:
        The removed folders.
    """
    patterns = [
        pattern.format(glob.escape(host))
        for pattern in (_UNFINISHED if deep else _IN_SCRIPTS_FOLDERS)
    ]
    found = {path for place in places for pattern in patterns for path in matches(place, pattern)}
    return [path for path in sorted(found) if _is_left(path) and remove_private(path)]


def matches(place: Path, pattern: str) -> list[Path]:
    """Return the paths that match a pattern; none if folders vanish during the search."""
    try:
        return list(place.glob(pattern))
    except OSError:
        return []


def _is_left(folder: Path) -> bool:
    """Return whether its process is gone; a folder gets its mark only after its lock."""
    return os.path.lexists(folder / MARK) and is_unlocked(folder)


def note_scratch(root: Path, place: Path) -> None:
    """Note, next to a config, a directory in which its jobs put captures together.

    Raises:
        OSError: It cannot be written.
    """
    text = json.dumps(str(place))
    path = root / f"{_NOTE}{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    # The note is private, because readers ignore notes that others may change.
    if not write_if_absent(path, text, mode=0o600):
        with contextlib.suppress(PermissionError):  # another user's note, valid for that user only
            os.utime(path, follow_symlinks=False)
    for old in _notes(root)[MAX_NOTES:]:
        with contextlib.suppress(OSError):
            remove(old)


def staging_dirs(root: Path) -> list[Path]:
    """Return the folders of single processes in the noted scratch directories.

    Notes and folders that other users can have made are ignored. A scratch directory is shared by
    all users, and their captures do not belong to this config.
    """
    return [folder for note in _notes(root)[:MAX_NOTES] for folder in _staging_dirs(note)]


def _notes(root: Path) -> list[Path]:
    """Return all notes, newest first."""
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

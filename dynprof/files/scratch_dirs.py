"""Where captures of a directory's jobs were put together besides: a scratch directory, anywhere.

A job that was killed cannot say so any more, and the config may name another one by now. So each
is noted beside the config as it is first used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from pathlib import Path

from dynprof.files.output import remove, write_if_absent
from dynprof.files.regular import read_regular
from dynprof.files.who_may_change import who_else_may_change

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


def workshops(root: Path) -> list[Path]:
    """Return the folders of single processes in the scratch directories that are noted.

    Nobody else than the calling user may have written the note or made the folder: a scratch
    directory is one of all users, and what they put there is none of this directory's.
    """
    return [folder for note in _notes(root)[:MOST] for folder in _workshops(note)]


def _notes(root: Path) -> list[Path]:
    """Return all notes, the newest first."""
    ages = {}
    with contextlib.suppress(OSError):
        for path in root.glob(f"{_NOTE}*"):
            with contextlib.suppress(OSError):
                ages[path] = path.lstat().st_mtime
    return sorted(ages, key=lambda path: -ages[path])


def _workshops(note: Path) -> list[Path]:
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

"""Whether anybody but this process's user can change what lies at a path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_ROOT = 0


def who_else_may_change(path: Path) -> str:
    """Say through which file or folder others can change a file, or put another in its place.

    Rights that an access control list gives show as those of the group. Where the path leads
    through links, what holds for them holds for what they lead to.

    Returns:
        Empty where only this process's user and root can, else a clause.
    """
    real = Path(os.path.realpath(path))
    named = {path, path.parent, real, real.parent}
    for place in dict.fromkeys((path, *path.parents, real, *real.parents)):
        try:
            facts = place.stat()
        except OSError as error:
            return f"it is not known who may write {place} ({error.strerror})"
        keeps_apart = facts.st_mode & stat.S_ISVTX and place not in named
        if facts.st_uid not in (os.geteuid(), _ROOT):
            return f"{place} is another user's"
        if facts.st_mode & _OTHERS and not keeps_apart:
            return f"others than the job's user may write {place}"
    return ""

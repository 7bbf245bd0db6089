"""Which user a path belongs to, as far as root's commands are concerned.

A user may put links into a folder that lead to what only root may read or write. So root's commands
ask here before they open anything.
"""

from __future__ import annotations

import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import OwnerError
from dynprof.files.who_may_change import ROOT, has_no_number, is_trusted_by_name, trusts_everybody

if TYPE_CHECKING:
    import os

MOST_LINKS = 40  # The kernel follows no more on the way to a file.


def owner_on_the_way(path: Path) -> tuple[int, Path, Path]:
    """Return the first user but root who owns something on the way to a path.

    Users that ``DYNPROF_TRUST_UIDS`` names count as root. So does an owner outside of this user
    namespace: this root is then that of a container, and has no rights of the host's root. A link
    counts with its own owner; root's links are followed.

    Args:
        path: It need not exist.

    Returns:
        The uid, root's where all that exists is root's; what that user owns; and the path through
        no link that leads there.

    Raises:
        OwnerError: Other users could still change which file the path leads to.
    """
    try:
        left = list(path.absolute().parts[1:])
    except FileNotFoundError:  # the working directory is gone
        return ROOT, path, path
    reached, links = Path("/"), 0
    while left and links <= MOST_LINKS:
        name = left.pop(0)
        if name == "..":
            reached = reached.parent
            continue
        place = reached / name
        try:
            facts = place.lstat()
        except OSError:  # the command says that nothing is there
            _check_not_made(place)
            break
        if not _counts_as_root(facts.st_uid):
            return facts.st_uid, place, place.joinpath(*left)
        _check_not_replaced(place)
        if not stat.S_ISLNK(facts.st_mode):
            reached = place
            continue
        links += 1
        target = place.readlink()
        reached = Path("/") if target.is_absolute() else reached
        left = [*target.parts[target.is_absolute() :], *left]
    return ROOT, path, path


def _counts_as_root(uid: int) -> bool:
    try:
        return uid == ROOT or has_no_number(uid) or is_trusted_by_name(uid)
    except ValueError as error:
        raise OwnerError(str(error)) from None


def _check_not_made(place: Path) -> None:
    """Refuse what is not there, and what another user could put there before root opens it."""
    if _others_may_write(place.parent.lstat()):
        text = (
            f"there is no {place}. Check the path; root's commands make nothing there, since other"
        )
        text = f"{text} users may write {place.parent}. For a new folder, mkdir it first"
        raise OwnerError(text)


def _check_not_replaced(place: Path) -> None:
    """Refuse what is root's, where another user could replace it before root opens it."""
    facts, folder = place.parent.lstat(), shlex.quote(str(place.parent))
    if _others_may_write(facts) and not facts.st_mode & stat.S_ISVTX:
        text = f"other users may replace {place}, which is root's, since they may write"
        raise OwnerError(f"{text} {place.parent}. Set its sticky bit: chmod +t {folder}")


def _others_may_write(facts: os.stat_result) -> bool:
    group = facts.st_mode & stat.S_IWGRP and facts.st_gid != ROOT
    return not trusts_everybody() and bool(group or facts.st_mode & stat.S_IWOTH)

"""Root's commands act as the owner of what they are given.

A user may put links into a folder that lead to what only root may read or write. So a command of
root's becomes that user before it opens anything there, and stays it: the real, the effective and
the saved ids all change, and no code in the process can go back.
"""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import OwnerError
from dynprof.files.who_may_change import is_trusted_by_name, or_trust, trusts_everybody

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = 0
MOST_LINKS = 40  # The kernel follows no more on the way to a file.


@dataclass(frozen=True)
class User:
    """A user that this process acts as.

    Attributes:
        uid: The number.
        gid: The main group; without an account the number of the user, as most systems give it.
            Not the group of the folder, which may be root's.
        name: The name of the account; empty without one.
        home: The home directory.
        place: The folder, file or link of this user because of which the process acts so.
    """

    uid: int
    gid: int
    name: str
    home: str
    place: Path

    def __str__(self) -> str:
        """Return how messages name the user."""
        return f"{self.name} (uid {self.uid})" if self.name else f"uid {self.uid}"


_acting: list[User] = []


def act_as_owner(path: Path, tell: Callable[[str], None]) -> Path:
    """Become the user who owns a path, where root runs this process; say so once.

    The first folder, file or link on the way from the root directory that is not root's decides;
    users that ``DYNPROF_TRUST_UIDS`` names count as root, whose commands trust them. A
    link counts with its own owner; root's links are followed. Where all of it is root's, and for
    every other user, nothing changes. The first call that changes the user is the last one.

    Args:
        path: What the command was given; it need not exist.
        tell: Shows a line to the person who typed the command.

    Returns:
        The same path; where the user changed, an absolute one without root's links.

    Raises:
        OwnerError: The user cannot be changed, or the new one cannot run dynprof or read the path;
            or all of it is root's, and other users could still change where it leads.
    """
    if os.geteuid() == ROOT:
        uid, place, path = owner_on_the_way(path)
        if uid == ROOT:
            return path
        user = _user(uid, place)
        _become(user)
        _acting.append(user)
        tell(f"acting as {user}, who owns {place}")
    for user in _acting:
        _check_readable(path, user)
    return path


def is_acting() -> bool:
    """Return whether this process has given up root's rights to act as another user.

    Linux lets that user neither trace this process nor read its memory. A process that it starts
    is that user's in full: it must have neither root's terminal nor root's environment.
    """
    return bool(_acting)


def owner_on_the_way(path: Path) -> tuple[int, Path, Path]:
    """Return the first user but root who owns something on the way to a path.

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
        return uid == ROOT or is_trusted_by_name(uid)
    except ValueError as error:
        raise OwnerError(str(error)) from None


def _check_not_made(place: Path) -> None:
    """Refuse what is not there, and what another user could put there before root opens it."""
    if _others_may_write(place.parent.lstat()):
        text = f"there is no {place}, and other users may make it, since they may write"
        raise OwnerError(f"{text} {place.parent}. Make it first, or name a path that exists")


def _check_not_replaced(place: Path) -> None:
    """Refuse what is root's, where another user could replace it before root opens it."""
    facts, folder = place.parent.lstat(), shlex.quote(str(place.parent))
    if _others_may_write(facts) and not facts.st_mode & stat.S_ISVTX:
        text = f"other users may replace {place}, which is root's, since they may write"
        raise OwnerError(f"{text} {place.parent}. Set its sticky bit: chmod +t {folder}")


def _others_may_write(facts: os.stat_result) -> bool:
    group = facts.st_mode & stat.S_IWGRP and facts.st_gid != ROOT
    return not trusts_everybody() and bool(group or facts.st_mode & stat.S_IWOTH)


def _user(uid: int, place: Path) -> User:
    try:
        account = pwd.getpwuid(uid)
    except KeyError:
        return User(uid, uid, "", "/", place)
    return User(uid, account.pw_gid, account.pw_name, account.pw_dir, place)


def _become(user: User) -> None:
    """Change the user for good, with the groups of that user only, and forget root's folders.

    Raises:
        OwnerError: The system refuses it, or the user cannot read the code of this process.
    """
    code = _code()
    try:
        if user.name:
            os.initgroups(user.name, user.gid)
        else:
            os.setgroups([])
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
    except OSError as error:
        text = f"{user} owns {user.place}, and dynprof cannot act as that user: {error.strerror}"
        raise OwnerError(f"{text}. {_instead(user)}") from None
    if hidden := next((file for file in code if not os.access(file, os.R_OK)), None):
        text = f"{user} owns {user.place}, and dynprof acts as that user there; but that user"
        text = f"{text} cannot read {_barrier(hidden)}, where this dynprof or its Python lies"
        raise OwnerError(f"{text}. Install dynprof where all can read it, or {_instead(user)}")
    name = user.name or str(user.uid)
    os.environ.update(HOME=user.home, USER=name, LOGNAME=name)
    for variable in [one for one in os.environ if one.startswith("XDG_")]:
        del os.environ[variable]  # names a folder of root's, such as /run/user/0
    if not os.access(os.environ.get("TMPDIR", "/tmp"), os.W_OK | os.X_OK):  # noqa: S108
        os.environ.pop("TMPDIR", None)


def _code() -> list[Path]:
    """Return the interpreter and the files that this process has loaded; more lie next to them."""
    named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    program = Path(sys.executable)
    files = [program.resolve(), program, *(Path(one) for one in named if isinstance(one, str))]
    return [file for file in files if file.is_file()]


def _barrier(file: Path) -> Path:
    """Return the first folder on the way to a file that this process may not enter."""
    above = reversed(file.parents)
    return next((folder for folder in above if not os.access(folder, os.X_OK)), file)


def _instead(user: User) -> str:
    named = shlex.quote(user.name or f"#{user.uid}")
    return f"run it as that user: sudo -u {named} dynprof ..."


def _check_readable(path: Path, user: User) -> None:
    """Refuse a path that exists, and that this user may not read."""
    try:
        path.stat()
        readable = os.access(path, os.R_OK)
    except PermissionError:
        readable = False
    except OSError:  # it is not there; the command says so
        return
    if not readable:
        text = f"{path} cannot be read by {user}, as whom dynprof acts: {user.place} is that user's"
        text = f"{text}. A path of root's must be root's from end to end"
        raise OwnerError(f"{text}{or_trust(str(user.uid))}")

"""Whether anybody but this process's user can change what lies at a path, or replace it."""

from __future__ import annotations

import contextlib
import functools
import grp
import os
import pwd
import stat
import sys
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH
ROOT = 0
TRUST_UIDS = "DYNPROF_TRUST_UIDS"
"""Names the variable with users whose folders are as good as this user's own: 1000,1001, or *."""
_ALL_USERS = "*"
_UNKNOWN = 65534
"""The owner that Linux shows where a user namespace has no number for the real one."""


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
        if facts.st_uid not in (os.geteuid(), ROOT):
            return f"{place} is another user's"
        if facts.st_mode & _OTHERS and not keeps_apart:
            return f"others than the job's user may write {place}"
    return ""


def why_only_listed(config: Path, named_in: Path | None, *, listed_only: bool) -> str:
    """Say why captures may go only where the job's script allows it, and how it can allow more.

    Args:
        config: The config, which only the job's user may change where nothing is said.
        named_in: Another file that names the place; None for none.
        listed_only: Another rank names the place, so that the rights to these files say nothing.
    """
    how = "with init(prof_dirs=[...]) or DYNPROF_PROF_DIRS"
    if listed_only:
        return f"another rank asks for it, over the job's store; allow it on every rank, {how}"
    others = who_else_may_change(config) or (who_else_may_change(named_in) if named_in else "")
    return f"{others}; the job's owner may allow it, {how}" if others else ""


def who_else_may_replace(directory: Path, script: str = "") -> str:
    """Say which other user owns a directory, or can put another one in its place.

    As sshd's StrictModes, but that a group may write: the owner has chosen it. Links on the way
    count as folders do. What does not exist yet belongs to nobody else.

    Args:
        directory: The directory.
        script: The script whose owner decides what the job does; left out, that of this process.

    Returns:
        Empty where only this process's user, root and groups that they chose can, else a clause.
    """
    return _first_other(directory, script or _script())[0]


def _first_other(directory: Path, script: str) -> tuple[str, str]:
    """Return who else can replace a directory, in words, and whom to trust if that is meant."""
    path, real = directory.absolute(), Path(os.path.realpath(directory))
    for place in dict.fromkeys((path, *path.parents, real, *real.parents)):
        try:
            facts = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"it is not known who owns {place} ({error.strerror})", ""
        owner, is_above = facts.st_uid, place not in (path, real)
        is_ours = is_trusted(owner) or owner in _owners_of(script)
        if not (is_ours or (is_above and has_no_number(owner))):
            text = f"{place} belongs to {_user_name(owner)}, not to {_user_name(os.geteuid())}"
            return text, str(owner)
        if is_above and may_be_emptied(facts):
            return f"every user may rename what is in {place}, for lack of chmod +t", "'*'"
    return "", ""


def why_not_watched(directory: Path, script: str = "") -> str:
    """Say why a config in a directory would be another user's to replace, and what to do."""
    why, whom = _first_other(directory, script or _script())
    if not why:
        return ""
    advice = "use a directory of this user's own, e.g. mkdir -m 700 ~/prof_config"
    return f"{directory} is not safe to watch: {why}; {advice}{or_trust(whom)}"


def or_trust(whom: str) -> str:
    """Return, for the end of an advice, how to trust a user; nothing where that does not help."""
    how = f", or trust that user with this one's rights, as in a container: {TRUST_UIDS}={whom}"
    return how if whom else ""


def is_trusted(uid: int) -> bool:
    """Return whether a user may do what this process's user may do anyway.

    That is this user, root, whom ``DYNPROF_TRUST_UIDS`` names, and who owns the script or a folder
    above it: the owner of a script decides what it does.

    Raises:
        ValueError: ``DYNPROF_TRUST_UIDS`` is no list of numbers.
    """
    own = (os.geteuid(), ROOT)
    return uid in own or is_trusted_by_name(uid) or uid in _owners_of(_script())


def is_trusted_by_name(uid: int) -> bool:
    """Return whether ``DYNPROF_TRUST_UIDS`` names a user.

    Raises:
        ValueError: It is no list of numbers.
    """
    if trusts_all_users():
        return True
    named = [word.strip() for word in os.environ.get(TRUST_UIDS, "").split(",") if word.strip()]
    if wrong := next((word for word in named if not word.isdecimal()), None):
        text = "write numbers of users, such as 1000,1001, or * for all"
        raise ValueError(f"{TRUST_UIDS} has {wrong!r}: {text}")
    return uid in map(int, named)


def trusts_all_users() -> bool:
    """Return whether ``DYNPROF_TRUST_UIDS`` says that every user may do what this one may."""
    return os.environ.get(TRUST_UIDS, "").strip() == _ALL_USERS


def _script() -> str:
    """Return the script of this process, also before it has begun; empty where it has none."""
    begun = getattr(sys.modules.get("__main__"), "__file__", None)
    if begun:
        return str(begun)
    typed = iter(sys.orig_argv[1:])
    for word in typed:
        if word in ("-X", "-W"):
            next(typed, None)
        elif word in ("-c", "-m", "-"):
            return ""
        elif not word.startswith("-"):
            return os.path.abspath(word)  # noqa: PTH100 - as it was typed
    return ""


@functools.lru_cache(maxsize=64)
def is_private_group(gid: int, uid: int) -> bool:
    """Return whether a group is the one that many systems give each user: no other member."""
    try:
        user, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


@functools.lru_cache(maxsize=8)
def _owners_of(script: str) -> frozenset[int]:
    """Return who owns a script and the folders above it; empty where there is none."""
    path, found = Path(os.path.realpath(script)), set()
    if not (os.path.isabs(script) and os.path.isfile(path)):  # noqa: PTH113, PTH117 - raise nothing
        return frozenset()  # such as "<stdin>"
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            found.add(place.stat().st_uid)
    return frozenset(found)


def may_be_emptied(folder: os.stat_result) -> bool:
    """Return whether users without trust may remove or rename what others put into a folder."""
    mode = folder.st_mode
    return (
        not trusts_all_users()
        and stat.S_ISDIR(mode)
        and bool(mode & stat.S_IWOTH)
        and not mode & stat.S_ISVTX
    )


def _user_name(uid: int) -> str:
    """Return a user's name and number; a container may have no name for it."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def has_no_number(uid: int) -> bool:
    """Return whether the owner is outside of this user namespace, as the host's root may be.

    So it is in a container that a user starts without root's help and that maps this user alone:
    the folders above a home are root's, and show as nobody's.
    """
    if uid != _UNKNOWN:
        return False
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    ranges = [tuple(map(int, line.split())) for line in lines]
    return not any(first <= uid < first + count for first, _, count in ranges)

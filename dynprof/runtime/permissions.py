"""Check whether users other than this process's can change or replace a file."""

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
"""User id of root."""
TRUST_UIDS = "DYNPROF_TRUST_UIDS"
"""Variable with the uids to trust like this user: 1000,1001, or * for all."""
_ALL_USERS = "*"
_UNKNOWN = 65534
"""The owner that Linux shows if a user namespace has no number for the real one."""


def who_else_may_change(path: Path) -> str:
    """Return through which file or folder others can change or replace a file.

    Rights in an access control list show as rights of the group. If the path has links, the same
    holds for links and targets.

    Returns:
        Empty if only this process's user and root can, else a clause.
    """
    real = Path(os.path.realpath(path))
    named = {path, path.parent, real, real.parent}
    for place in dict.fromkeys((path, *path.parents, real, *real.parents)):
        try:
            facts = place.stat()
        except OSError as error:
            return f"cannot check who may write {place} ({error.strerror})"
        keeps_apart = facts.st_mode & stat.S_ISVTX and place not in named
        if facts.st_uid not in (os.geteuid(), ROOT):
            return f"{place} is another user's"
        if facts.st_mode & _OTHERS and not keeps_apart:
            return f"users other than the job's user may write {place}"
    return ""


def why_only_listed(config: Path, named_in: Path | None, *, listed_only: bool) -> str:
    """Return why captures may go only where the job's script allows it, and how to allow more.

    Args:
        config: The config; if only the job's user may change it, there is no such limit.
        named_in: Another file that names the place; None for none.
        listed_only: Another rank names the place, so the rights to these files do not count.
    """
    how = "with init(prof_dirs=[...]) or DYNPROF_PROF_DIRS"
    if listed_only:
        return f"another rank asks for it, over the job's store; allow it on every rank, {how}"
    others = who_else_may_change(config) or (who_else_may_change(named_in) if named_in else "")
    return f"{others}; the job's owner may allow it, {how}" if others else ""


def who_else_may_replace(directory: Path, script: str = "") -> str:
    """Return which other user owns a directory or can replace it.

    The rules are those of sshd's StrictModes, but a group may write: the owner has chosen it. Links
    on the way count like folders. A path that does not exist yet belongs to no other user.

    Args:
        directory: The directory.
        script: The script whose owner decides what the job does; by default this process's.

    Returns:
        Empty if only this process's user, root and groups that they chose can, else a clause.
    """
    return _first_other(directory, script or _script())[0]


def _first_other(directory: Path, script: str) -> tuple[str, str]:
    """Return who else can replace a directory, and the uid to trust if that is intended."""
    path, real = directory.absolute(), Path(os.path.realpath(directory))
    for place in dict.fromkeys((path, *path.parents, real, *real.parents)):
        try:
            facts = place.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"cannot check who owns {place} ({error.strerror})", ""
        owner, is_above = facts.st_uid, place not in (path, real)
        is_ours = is_trusted(owner) or owner in _owners_of(script)
        if not (is_ours or (is_above and has_no_number(owner))):
            text = f"{place} belongs to {_user_name(owner)}, not to {_user_name(os.geteuid())}"
            return text, str(owner)
        if is_above and may_be_emptied(facts):
            return f"every user may rename files in {place}, which lacks chmod +t", "'*'"
    return "", ""


def why_not_watched(directory: Path, script: str = "") -> str:
    """Return why another user could replace a config in a directory, and what to do."""
    why, whom = _first_other(directory, script or _script())
    if not why:
        return ""
    advice = "use a directory of this user's own, e.g. mkdir -m 700 ~/prof_config"
    return f"{directory} is not safe to watch: {why}; {advice}{or_trust(whom)}"


def or_trust(whom: str) -> str:
    """Return how to trust a user, as the end of an advice; empty if that does not help."""
    how = f", or trust that user with this one's rights, as in a container: {TRUST_UIDS}={whom}"
    return how if whom else ""


def is_trusted(uid: int) -> bool:
    """Return whether a user may do what this process's user may do anyway.

    Those are this user, root, and users named in ``DYNPROF_TRUST_UIDS``. The owner of the script,
    or of a folder above it, counts too: that user decides what the script does.

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
        text = "write user ids, such as 1000,1001, or * for all"
        raise ValueError(f"{TRUST_UIDS} has {wrong!r}: {text}")
    return uid in map(int, named)


def trusts_all_users() -> bool:
    """Return whether ``DYNPROF_TRUST_UIDS`` gives every user the rights of this one."""
    return os.environ.get(TRUST_UIDS, "").strip() == _ALL_USERS


def _script() -> str:
    """Return the script of this process, even before it runs; empty if there is none."""
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
    """Return whether a group is the private one that many systems give each user."""
    try:
        user, group = pwd.getpwuid(uid).pw_name, grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user and set(group.gr_mem) <= {user}


@functools.lru_cache(maxsize=8)
def _owners_of(script: str) -> frozenset[int]:
    """Return the owners of a script and of the folders above it; empty if there is none."""
    path, found = Path(os.path.realpath(script)), set()
    if not (os.path.isabs(script) and os.path.isfile(path)):  # noqa: PTH113, PTH117 - raise nothing
        return frozenset()  # such as "<stdin>"
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            found.add(place.stat().st_uid)
    return frozenset(found)


def may_be_emptied(folder: os.stat_result) -> bool:
    """Return whether untrusted users may remove or rename other users' files in a folder."""
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

    An example is a container that a user starts without root's help and that maps this user alone.
    The folders above a home then belong to root, and show the owner ``nobody``.
    """
    if uid != _UNKNOWN:
        return False
    try:
        lines = Path("/proc/self/uid_map").read_text().splitlines()
    except OSError:
        return False
    ranges = [tuple(map(int, line.split())) for line in lines]
    return not any(first <= uid < first + count for first, _, count in ranges)

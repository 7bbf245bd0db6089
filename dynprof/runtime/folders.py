"""Open folders by a path on which no other user can have put a link."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from dynprof.runtime.who_may_change import ROOT, has_no_number, is_private_group, is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DIR_MODE = 0o770
"""Permissions of a new folder before the umask: private to user and group."""
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
"""Flags for a folder on the way: it need not be readable, and links are not followed."""
_MAX_LINKS = 40  # Linux's limit for one path.
_MAX_TRIES = 10  # Another process may remove an empty folder that this one has just made.


def opened(path: str | Path, flags: int, mode: int = 0, *, folder: int | None = None) -> int:
    """Open a path as :func:`os.open` does, but never wait for a pipe's other end.

    Raises:
        OSError: It cannot be opened.
    """
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode, dir_fd=folder)


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Give the descriptor of a folder, for the ``dir_fd`` of :mod:`os`.

    Links on the way are followed if their owner is this process's user or root, and no other user
    may write in their folder.

    Args:
        path: The folder.
        make: Make missing folders, private to user and group. In a folder that every user may
            write, such as ``/tmp``, an existing folder must belong to this process's user.

    Raises:
        OSError: It cannot be opened or made, or another user could have put a link in its way.
    """
    descriptor = _walk(path, make=make)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def make_dir(path: Path) -> None:
    """Make a folder and its missing parents, as :func:`open_folder` does.

    Raises:
        OSError: As :func:`open_folder` does.
    """
    os.close(_walk(path, make=True))


def why_not_used(folder: Path) -> str:
    """Return why this user cannot read and write in an existing folder; empty if it can."""
    if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return ""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return f"{folder} is on a read-only file system"
    return f"{folder} cannot be read and written by this user"


def _walk(path: Path, *, make: bool) -> int:
    """Open a folder. When making it, try again if a folder vanishes on the way."""
    with naming(path):
        for _ in range(_MAX_TRIES if make else 0):
            with contextlib.suppress(FileNotFoundError):
                return _open_parts(path, make=True)
        return _open_parts(path, make=make)


def _open_parts(path: Path, *, make: bool) -> int:
    """Open a folder component by component."""
    here, parts = _begin(os.path.normpath(path))
    links = 0
    while parts:
        name = parts.pop()
        try:
            below = _step(name, here, make=make)
        except NotADirectoryError:
            links += 1
            below, more = _begin(_link_target(name, here, links), here)
            parts += more
        finally:
            os.close(here)
        here = below
    return here


def _step(name: str, here: int, *, make: bool) -> int:
    try:
        below = opened(name, _ON_THE_WAY, folder=here)
    except FileNotFoundError:
        if not make:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, DIR_MODE, dir_fd=here)
        below = opened(name, _ON_THE_WAY, folder=here)
    owner = os.fstat(below).st_uid
    is_ours = is_trusted(owner) or has_no_number(owner)
    if make and os.fstat(here).st_mode & stat.S_IWOTH and not is_ours:
        os.close(below)
        text = f"{name} belongs to uid {owner}, in a folder that every user may write"
        raise PermissionError(errno.EPERM, text)
    return below


def _begin(path: str, here: int | None = None) -> tuple[int, list[str]]:
    """Return where a path begins, and its components from the last to the first."""
    start = "/" if path.startswith("/") else "."
    descriptor = opened(start, os.O_PATH | os.O_DIRECTORY, folder=here)
    return descriptor, [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link_target(name: str, folder: int, links: int) -> str:
    """Return the target of a link.

    Raises:
        OSError: It is no link, another user could have made it, or there are too many.
    """
    if links > _MAX_LINKS:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if why := why_not_followed(name, folder):
        raise OSError(errno.ELOOP, f"{name} is a symbolic link, and {why}; use the folder itself")
    return os.path.normpath(os.readlink(name, dir_fd=folder))


def why_not_followed(name: str, folder: int) -> str:
    """Return why a link is not followed: which other user could have made it; empty if none."""
    trusted = (os.geteuid(), ROOT)
    link, holder = os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(folder)
    if link.st_uid not in trusted:
        return f"it belongs to uid {link.st_uid}"
    if holder.st_uid not in trusted:
        return f"its folder belongs to uid {holder.st_uid}"
    shared = holder.st_mode & stat.S_IWOTH or (
        holder.st_mode & stat.S_IWGRP and not is_private_group(holder.st_gid, holder.st_uid)
    )
    if shared and not holder.st_mode & stat.S_ISVTX:
        return "other users may write in its folder"
    return ""


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Make an error name the whole path, not a component of it."""
    try:
        yield
    except OSError as error:
        if error.filename2 is not None:  # it cannot be removed from the error
            raise type(error)(error.errno, error.strerror, str(path)) from None
        error.filename = str(path)
        raise

"""Open files and folders where other users may write: only regular files, and no link of theirs.

These functions never wait for the writer of a FIFO, read an endless device, or open a socket. They
check the open descriptor, so the checked file is the one that is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from dynprof.runtime.permissions import ROOT, has_no_number, is_private_group, is_trusted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePath

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NO_LINK
"""Flags for a folder that need not be listed: it may allow passing through only."""
_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}
_LINKED = "it is a symbolic link, which is not followed"
DIR_MODE = 0o770
"""Permissions of a new folder before the umask: private to user and group."""
_ON_THE_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
"""Flags for a folder on the way: it need not be readable, and links are not followed."""
_MAX_LINKS = 40  # Linux's limit for one path.
_MAX_TRIES = 10  # Another process may remove an empty folder that this one has just made.


class NotRegularError(OSError):
    """The path is no regular file, or it is another user's; ``strerror`` says which."""


def why_not_read(facts: os.stat_result, holder: os.stat_result) -> str:
    """Return why a path in a folder is not read: it is not regular, or of a user with no say there.

    Users with a say are the owner of the folder, root, and the user of this process.

    Args:
        facts: The ``lstat`` or ``fstat`` result of the path.
        holder: The stat result of the folder that holds it.

    Returns:
        Empty if it is read, else the rest of a sentence about it.
    """
    if not stat.S_ISREG(facts.st_mode):
        return f"is {_kind(facts)}"
    return why_foreign(facts, holder)


def why_foreign(facts: os.stat_result, holder: os.stat_result) -> str:
    """Return who owns a path, if the owner has no say in the folder that holds it."""
    has_say = facts.st_uid in (holder.st_uid, ROOT, os.geteuid())
    return "" if has_say else f"belongs to uid {facts.st_uid}"


def _kind(facts: os.stat_result) -> str:
    return _KINDS.get(stat.S_IFMT(facts.st_mode), "a device")


def descriptor_of(
    path: str | Path,
    flags: int = os.O_RDONLY,
    mode: int = 0,
    *,
    follow_symlinks: bool = False,
    folder: int | None = None,
) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor and its stat result.

    Args:
        path: The file.
        flags: As :func:`os.open` takes them.
        mode: The permissions of a new file.
        follow_symlinks: Open it through a symbolic link.
        folder: The descriptor of the folder that ``path`` is relative to.

    Raises:
        NotRegularError: The path is not a regular file.
        OSError: It cannot be opened, or it is a link that is not followed.
    """
    if follow_symlinks:
        with contextlib.suppress(FileNotFoundError):
            # Opening a device may have side effects, so check first.
            _check(path, os.stat(path, dir_fd=folder))
    else:
        flags |= _NO_LINK
    try:
        descriptor = opened(path, flags, mode, folder=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a FIFO without a reader
            facts = os.stat(path, dir_fd=folder, follow_symlinks=follow_symlinks)
            _check(path, facts)
        if error.errno == errno.ELOOP and not follow_symlinks:
            raise NotRegularError(errno.ELOOP, _LINKED, str(path)) from None
        raise
    try:
        facts = os.fstat(descriptor)
        _check(path, facts)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor, facts


def _check(path: str | Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        text = f"{_kind(facts)} is in the place of the file"
        raise NotRegularError(errno.EINVAL, text, str(path))


@contextlib.contextmanager
def folder_below(top: Path, below: PurePath) -> Iterator[int]:
    """Open a folder below another, without following links, even if one is made during the call.

    Raises:
        OSError: It cannot be opened, or a link is in its way.
    """
    if ".." in below.parts:
        raise PermissionError(errno.EPERM, "the path leads out of the folder", str(below))
    folder = opened(top, _FOLDER)
    try:
        for name in below.parts:
            above, folder = folder, opened(name, _FOLDER, folder=folder)
            os.close(above)
        yield folder
    finally:
        os.close(folder)


def open_below(top: Path, file: PurePath) -> BinaryIO:
    """Open a regular file below a folder for reading bytes, as :func:`folder_below` does."""
    with folder_below(top, file.parent) as folder:
        return open(descriptor_of(file.name, folder=folder)[0], "rb")  # noqa: PTH123


def descriptor_inside(path: Path, *, linked_folder: bool = False) -> tuple[int, os.stat_result]:
    """Open a regular file in a folder that may be another user's.

    File and folder are no links, and the file's owner has a say there (see :func:`why_not_read`).

    Args:
        path: The file.
        linked_folder: The folder may be a link that no other user could have made. A job may allow
            that for its log and status.

    Returns:
        A descriptor for reading, and the stat result of the file.

    Raises:
        NotRegularError: The path is not a regular file, or is another user's.
        OSError: It cannot be opened.
    """
    if not linked_folder and path.parent.is_symlink():
        raise NotRegularError(errno.ELOOP, _LINKED, str(path.parent))
    with open_folder(path.parent) as folder:
        return _descriptor_in(folder, path)


def _descriptor_in(folder: int, path: Path) -> tuple[int, os.stat_result]:
    with naming(path):
        descriptor, facts = descriptor_of(path.name, folder=folder)
        if why := why_foreign(facts, os.fstat(folder)):
            os.close(descriptor)
            raise NotRegularError(errno.EPERM, f"it {why}, and its folder does not")
    return descriptor, facts


def is_trusted_link(path: Path) -> bool:
    """Return whether a path is a link that this process's user or root made."""
    with contextlib.suppress(OSError):
        facts = path.lstat()
        return stat.S_ISLNK(facts.st_mode) and facts.st_uid in (os.geteuid(), ROOT)
    return False


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading bytes; links are refused.

    Raises:
        OSError: It cannot be opened, it is not a regular file, or another user could have put a
            link in its way.
    """
    with open_folder(path.parent) as folder, naming(path):
        return open(descriptor_of(path.name, folder=folder)[0], "rb")  # noqa: PTH123


def open_inside(path: Path, *, linked_folder: bool = False) -> BinaryIO:
    """Open a file for reading bytes, as :func:`descriptor_inside` does."""
    return open(descriptor_inside(path, linked_folder=linked_folder)[0], "rb")  # noqa: PTH123


def read_at_most(descriptor: int, size: int, most_bytes: int) -> bytes:
    """Read a file to its end; of a larger one slightly more than ``most_bytes``.

    ``os.read`` allocates the requested size at once, whatever it reads. So no more than ``size``,
    the size that the system reports, is requested.
    """
    content, piece_bytes = b"", min(size, most_bytes) + 1
    while len(content) <= most_bytes and (piece := os.read(descriptor, piece_bytes)):
        content += piece
    return content


def read_regular(path: Path, most_bytes: int, *, follow_symlinks: bool = False) -> bytes:
    """Read a small regular file.

    Raises:
        OSError: It cannot be read, is not regular, or is larger.
    """
    opened_file = descriptor_of(path, follow_symlinks=follow_symlinks)
    return _content(path, opened_file, most_bytes)


def read_inside(path: Path, most_bytes: int, *, linked_folder: bool = False) -> bytes:
    """Read a small file, opened as :func:`descriptor_inside` does.

    Raises:
        OSError: As :func:`descriptor_inside` does, or it is larger.
    """
    return _content(path, descriptor_inside(path, linked_folder=linked_folder), most_bytes)


def read_from(folder: int, path: Path, most_bytes: int) -> bytes:
    """Read a small file of an open folder, checked as :func:`descriptor_inside` does.

    Args:
        folder: The descriptor of its folder.
        path: The file.
        most_bytes: The size up to which it is read.

    Raises:
        OSError: As :func:`read_inside` does.
    """
    return _content(path, _descriptor_in(folder, path), most_bytes)


def _content(path: Path, opened_file: tuple[int, os.stat_result], most_bytes: int) -> bytes:
    descriptor, facts = opened_file
    try:
        content = read_at_most(descriptor, facts.st_size, most_bytes)
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


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

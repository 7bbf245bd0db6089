"""Open files in folders that other users may write: only regular files.

These functions never wait for the writer of a FIFO, read an endless device, or open a socket. They
check the open descriptor, so the checked file is the one that is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from dynprof.runtime.folders import naming, open_folder, opened
from dynprof.runtime.who_may_change import ROOT

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

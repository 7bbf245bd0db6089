"""Files in folders that other users may write in: opened as regular files, or not at all.

Nothing here waits for the writer of a FIFO, reads a device on and on, or takes a socket for a
file; what was checked is what is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

from dynprof.files.far_descriptors import opened

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePath

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NO_LINK
_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
}


class NotRegularError(OSError):
    """Something else stands in the place of a file; ``strerror`` says what."""


def descriptor_of(
    path: str | Path,
    flags: int = os.O_RDONLY,
    mode: int = 0,
    *,
    follow_symlinks: bool = False,
    folder: int | None = None,
) -> tuple[int, os.stat_result]:
    """Open a regular file; return its descriptor, and what the system says of it.

    Args:
        path: The file.
        flags: As :func:`os.open` takes them.
        mode: The permissions of a new one.
        follow_symlinks: Open it through a symbolic link.
        folder: The descriptor of the folder that ``path`` is relative to.

    Raises:
        NotRegularError: Something else stands there.
        OSError: It cannot be opened, or it is a link that is not followed.
    """
    if follow_symlinks:
        with contextlib.suppress(FileNotFoundError):
            # Opening a device may already do something.
            _check(path, os.stat(path, dir_fd=folder))
    else:
        flags |= _NO_LINK
    try:
        descriptor = opened(path, flags, mode, folder=folder)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket, or a FIFO that nobody reads
            facts = os.stat(path, dir_fd=folder, follow_symlinks=follow_symlinks)
            _check(path, facts)
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
        kind = _KINDS.get(stat.S_IFMT(facts.st_mode), "a device")
        raise NotRegularError(errno.EINVAL, f"{kind} stands in the place of the file", str(path))


@contextlib.contextmanager
def folder_below(top: Path, below: PurePath) -> Iterator[int]:
    """Open a folder below another; no link leads there, whoever puts one in its way meanwhile.

    Raises:
        OSError: It cannot be opened, or a link stands in its way.
    """
    if ".." in below.parts:
        raise PermissionError(errno.EPERM, "it lies elsewhere", str(below))
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


def open_regular(path: Path, *, follow_symlinks: bool = True) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises:
        OSError: It cannot be opened, or something else stands there.
    """
    return open(descriptor_of(path, follow_symlinks=follow_symlinks)[0], "rb")  # noqa: PTH123


def read_at_most(descriptor: int, size: int, most_bytes: int) -> bytes:
    """Read a file to its end; of a larger one something beyond ``most_bytes``.

    As much memory is taken at once as is asked for, whatever is read: so no more than ``size``,
    which the system says that it has.
    """
    content, piece_bytes = b"", min(size, most_bytes) + 1
    while len(content) <= most_bytes and (piece := os.read(descriptor, piece_bytes)):
        content += piece
    return content


def read_regular(path: Path, most_bytes: int, *, follow_symlinks: bool = False) -> bytes:
    """Read a small regular file.

    Raises:
        OSError: It cannot be read, something else stands there, or it is larger.
    """
    descriptor, facts = descriptor_of(path, follow_symlinks=follow_symlinks)
    try:
        content = read_at_most(descriptor, facts.st_size, most_bytes)
    finally:
        os.close(descriptor)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content

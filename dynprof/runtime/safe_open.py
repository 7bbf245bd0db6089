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

from dynprof.runtime.folders import naming, open_folder, opened
from dynprof.runtime.who_may_change import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path, PurePath

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NO_LINK
"""How a folder is opened whose content need not be listed: it may allow only passing through."""
_KINDS = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}
_LINKED = "it is a symbolic link, which is not followed"


class NotRegularError(OSError):
    """Something else stands in the place of a file, or another user's; ``strerror`` says what."""


def why_not_read(facts: os.stat_result, holder: os.stat_result) -> str:
    """Say why something in a folder is not read: no regular file, or of a user with no say there.

    Those with a say are the owner of the folder, root, and the user of this process.

    Args:
        facts: What ``lstat`` or ``fstat`` says of it.
        holder: The same of the folder that holds it.

    Returns:
        Empty where it is read, else the end of a sentence about it.
    """
    if not stat.S_ISREG(facts.st_mode):
        return f"is {_kind(facts)}"
    return why_foreign(facts, holder)


def why_foreign(facts: os.stat_result, holder: os.stat_result) -> str:
    """Say whose something is, if its owner has no say in the folder that holds it."""
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
        text = f"{_kind(facts)} stands in the place of the file"
        raise NotRegularError(errno.EINVAL, text, str(path))


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


def descriptor_inside(path: Path, *, linked_folder: bool = False) -> tuple[int, os.stat_result]:
    """Open a regular file in a folder that may be another user's.

    It is no link, its folder is none, and its owner has a say there (see :func:`why_not_read`).

    Args:
        path: The file.
        linked_folder: Its folder may be a link that no other user could have made, as that of log
            and status where a job allows it.

    Returns:
        A descriptor for reading, and what the system says of the file.

    Raises:
        NotRegularError: Something else is in its place, or the file of another user.
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
    """Open a regular file for reading bytes; a link is none.

    Raises:
        OSError: It cannot be opened, something else is in its place, or another user could have
            put a link in its way.
    """
    with open_folder(path.parent) as folder, naming(path):
        return open(descriptor_of(path.name, folder=folder)[0], "rb")  # noqa: PTH123


def open_inside(path: Path, *, linked_folder: bool = False) -> BinaryIO:
    """Open a file for reading bytes, as :func:`descriptor_inside` does."""
    return open(descriptor_inside(path, linked_folder=linked_folder)[0], "rb")  # noqa: PTH123


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
    opened_file = descriptor_of(path, follow_symlinks=follow_symlinks)
    return _content(path, opened_file, most_bytes)


def read_inside(path: Path, most_bytes: int, *, linked_folder: bool = False) -> bytes:
    """Read a small file, opened as :func:`descriptor_inside` does.

    Raises:
        OSError: As there, or it is larger.
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

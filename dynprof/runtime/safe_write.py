"""Write files in folders that other users may write too.

A file is written through the descriptor that created it, and gets its name by a rename inside an
open folder. The way to that folder has no link that another user could have made. A library that
needs a path gets one in a private folder. No other module opens a path to write there;
``tests/unit/runtime/test_output_paths.py`` checks that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from dynprof.runtime.permissions import ROOT, trusts_all_users
from dynprof.runtime.safe_open import descriptor_of, naming, open_folder, opened

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MODE = 0o660
"""Permissions of a new file before the umask: private to user and group."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
MARK = ".dynprof"
"""A file in each private folder, which proves it: a folder renamed by another user has none."""
_PIECE = 1 << 20
"""Bytes that are copied at a time."""


@contextlib.contextmanager
def atomic_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Give a new file to write, which replaces ``path`` after the body.

    Readers see the old file or the new one. A link in its place is replaced, not followed. If the
    body raises, the old file stays.

    Args:
        path: The file.
        mode: Its permissions; by default private to user and group as the umask allows.

    Raises:
        OSError: It cannot be written.
    """
    with _temporary_file(path, mode) as (file, folder, temporary):
        yield file
        file.close()
        with naming(path):
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def atomic_text_file(path: Path) -> Iterator[TextIO]:
    """Give a new UTF-8 file, as :func:`atomic_file` does; line ends are not translated."""
    with atomic_file(path) as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
        yield text


def write_atomic(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write a small file as :func:`atomic_file` does: readers see the old one or the new one."""
    with atomic_file(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def try_write(folder: Path, size_bytes: int) -> None:
    """Write a temporary file into a folder and remove it.

    Raises:
        OSError: The folder takes no file.
    """
    with _temporary_file(folder / "tried", None) as (file, _, _):
        file.write(bytes(size_bytes))
        file.close()  # a network disk reports here that a quota is used up


def write_in_place(path: Path, content: bytes) -> None:
    """Overwrite a small file that cannot be replaced because it is a mount point.

    Readers may see it empty or incomplete for a moment. Owner and permissions stay.

    Raises:
        NotRegularError: The path is not a regular file.
        OSError: It cannot be written.
    """
    with open_folder(path.parent) as folder, naming(path):
        descriptor, _ = descriptor_of(path.name, os.O_WRONLY, folder=folder)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.truncate(0)
            file.write(content)


def write_if_absent(path: Path, content: str, mode: int | None = None) -> bool:
    """Write a small text file unless the name is taken; of many processes exactly one wins.

    Returns:
        Whether this call created it.
    """
    with _temporary_file(path, mode) as (file, folder, temporary):
        file.write(content.encode())
        file.close()
        with naming(path):
            return _claim_name(temporary, path.name, folder)


@contextlib.contextmanager
def file_for_library(path: Path) -> Iterator[Path]:
    """Give a path in a private temporary folder to a library that opens files by name.

    The file that it wrote replaces ``path`` after the body.
    """
    with tempfile.TemporaryDirectory(prefix="dynprof-") as private:
        made = Path(private) / path.name
        yield made
        with made.open("rb") as source, atomic_file(path) as sink:
            shutil.copyfileobj(source, sink, _PIECE)


def open_to_append(path: Path, *, follow_symlinks: bool = False) -> int:
    """Open or create a file to append to, and return its descriptor.

    A file with a second hard link is replaced, because that may be another file of the job's user.

    Args:
        path: The file. Its folder is no link.
        follow_symlinks: Open the target of a link in its place: the job's owner allows it.

    Raises:
        NotRegularError: The path is not a regular file.
        OSError: It cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    if follow_symlinks:
        return descriptor_of(path, flags, FILE_MODE, follow_symlinks=True)[0]
    with contextlib.ExitStack() as opened_folders, naming(path):
        above = opened_folders.enter_context(open_folder(path.parent.parent))
        folder = opened(path.parent.name, _FOLDER | os.O_PATH, folder=above)
        opened_folders.callback(os.close, folder)
        descriptor, facts = descriptor_of(path.name, flags, FILE_MODE, folder=folder)
        if facts.st_nlink > 1:
            os.close(descriptor)
            os.unlink(path.name, dir_fd=folder)
            flags |= os.O_EXCL
            descriptor, _ = descriptor_of(path.name, flags, FILE_MODE, folder=folder)
    return descriptor


def rename(old: Path, new: Path) -> None:
    """Rename a file or folder, even into another folder of the same disk.

    Raises:
        OSError: It cannot be renamed.
    """
    with open_folder(old.parent) as here, open_folder(new.parent) as there, naming(new):
        os.replace(old.name, new.name, src_dir_fd=here, dst_dir_fd=there)


def take_name(file: Path, path: Path, *, replace: bool) -> bool:
    """Rename a file inside its folder.

    Args:
        file: The file.
        path: Its new name.
        replace: Replace a file that has the name. Otherwise exactly one of many processes gets it.

    Returns:
        Whether this call renamed the file; False if the name is taken.

    Raises:
        OSError: It cannot be renamed.
    """
    with open_folder(file.parent) as folder, naming(path):
        if replace:
            os.replace(file.name, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            return True
        done = _claim_name(file.name, path.name, folder)
        if done:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name, dir_fd=folder)
    return done


def remove(path: Path) -> None:
    """Remove a file; of a link the link itself, not its target.

    Raises:
        OSError: It cannot be removed.
    """
    with open_folder(path.parent) as folder, naming(path):
        os.unlink(path.name, dir_fd=folder)


def remove_folder(place: Path) -> None:
    """Remove a folder with its content; a link in its place, or inside it, is not followed.

    Raises:
        OSError: It cannot be removed, or is a link.
    """
    with open_folder(place.parent) as folder, naming(place):
        shutil.rmtree(place.name, dir_fd=folder)


class PrivateFolder:
    """A new folder that only this process's user may enter, locked while this object exists.

    Args:
        place: Where to make it.

    Attributes:
        place: Its path, unless another process moves it.
        path: A path that leads there in this process even if the folder is moved or its name taken.

    Raises:
        OSError: It cannot be made, or is not private.
    """

    def __init__(self, place: Path) -> None:
        self.place, self._is_removed = place, False
        with open_folder(place.parent) as folder, naming(place):
            os.mkdir(place.name, 0o700, dir_fd=folder)
            self._descriptor = opened(place.name, _FOLDER, folder=folder)
        with contextlib.ExitStack() as failed, naming(place):
            failed.callback(os.close, self._descriptor)
            self.path = self._checked()
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.create(MARK).close()  # after the lock: a mark without a lock is a leftover
            failed.pop_all()

    def _checked(self) -> Path:
        """Return a path to the folder, unless another folder has replaced it since it was made."""
        others = os.listdir(self._descriptor)  # noqa: PTH208 - a descriptor
        if others or not (_is_private(self._descriptor) or trusts_all_users()):
            text = "it was made for this user alone, but others may write there"
            raise PermissionError(errno.EPERM, text)
        path = Path(f"/proc/self/fd/{self._descriptor}")
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                return path
        return self.place  # there is no /proc

    def create(self, name: str) -> BinaryIO:
        """Create a file in it, to write bytes."""
        return open(opened(name, _NEW, FILE_MODE, folder=self._descriptor), "wb")  # noqa: PTH123

    def move_out(self, name: str, target: Path) -> None:
        """Move a file or folder out of it; a file even to another disk.

        Raises:
            OSError: It is not there, or cannot be moved.
        """
        with open_folder(target.parent) as folder, naming(target):
            _make_private(name, self._descriptor)
            try:
                os.replace(name, target.name, src_dir_fd=self._descriptor, dst_dir_fd=folder)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                with (self.path / name).open("rb") as source, atomic_file(target) as sink:
                    shutil.copyfileobj(source, sink, _PIECE)

    def remove(self, *, is_in_use: bool = False) -> None:
        """Remove it with its content; a second call has no effect.

        Args:
            is_in_use: A library that cannot be interrupted may still write there. Its path must not
                lead to another folder, so the descriptor stays open.
        """
        if self._is_removed:
            return
        self._is_removed = True
        with contextlib.suppress(OSError):  # another process removes the rest
            _clear(self._descriptor)
            _remove_empty(self.place, self._descriptor)
        if not is_in_use:
            os.close(self._descriptor)


def remove_private(place: Path) -> bool:
    """Remove a private folder that a killed process left; return whether it was removed.

    Removes only such a folder of this user, because another user may give any folder its name.
    """
    with contextlib.suppress(OSError), open_folder(place.parent) as folder:
        descriptor = opened(place.name, _FOLDER, folder=folder)
        try:
            if _is_private(descriptor) and _is_there(MARK, descriptor):
                _clear(descriptor)
                _remove_empty(place, descriptor)
                return True
        finally:
            os.close(descriptor)
    return False


def _is_private(folder: int) -> bool:
    facts = os.fstat(folder)
    return facts.st_uid in (os.geteuid(), ROOT) and stat.S_IMODE(facts.st_mode) & 0o777 == 0o700


def _clear(folder: int) -> None:
    """Remove the content of a private folder, its mark last."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name == MARK)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(f"/proc/self/fd/{folder}/{entry.name}", ignore_errors=True)
        else:
            os.unlink(entry.name, dir_fd=folder)


def _remove_empty(place: Path, folder: int) -> None:
    """Remove a folder, unless another folder has its name now."""
    with open_folder(place.parent) as above:
        named = os.stat(place.name, dir_fd=above, follow_symlinks=False)
        if os.path.samestat(named, os.fstat(folder)):
            os.rmdir(place.name, dir_fd=above)


def _make_private(name: str, folder: int) -> None:
    """Drop other users' permissions from a library's file, which has those of the umask."""
    descriptor = opened(name, os.O_RDONLY | os.O_NOFOLLOW, folder=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            os.fchmod(descriptor, mode & FILE_MODE)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporary_file(path: Path, mode: int | None) -> Iterator[tuple[BinaryIO, int, str]]:
    """Give a new temporary file, the descriptor of its folder, and its name; remove it after."""
    with open_folder(path.parent) as folder:
        temporary = f".{secrets.token_hex(8)}.tmp"
        with naming(path):
            descriptor = opened(temporary, _NEW, FILE_MODE if mode is None else mode, folder=folder)
        try:
            with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
                if mode is not None:
                    os.fchmod(descriptor, mode)
                yield file, folder, temporary
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)


def _claim_name(file: str, name: str, folder: int) -> bool:
    """Link a file to a name, or rename it where there are no links, unless the name is taken."""
    ends = {"src_dir_fd": folder, "dst_dir_fd": folder}
    try:
        os.link(file, name, **ends, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        if _is_there(name, folder):
            return False
        os.replace(file, name, **ends)  # noqa: PTH105 - by descriptors
    return True


def _is_there(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True

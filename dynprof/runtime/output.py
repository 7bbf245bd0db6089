"""Output: files written where other users may write as well.

A file is written through the descriptor that created it and gets its name by a rename inside a
folder that is open. The way to that folder leads through no link that another user could have
made. A library that needs a path gets one in a private folder. No other module opens a path to
write there; ``tests/unit/runtime/test_output_paths.py`` keeps it so.
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

from dynprof.runtime.folders import naming, open_folder, opened
from dynprof.runtime.safe_open import descriptor_of
from dynprof.runtime.who_may_change import ROOT, trusts_all_users

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MODE = 0o660
"""Permissions of a new file before the umask: private to user and group."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
MARK = ".dynprof"
"""A file in each private folder: what another user renames to its name has none."""
_PIECE = 1 << 20


@contextlib.contextmanager
def atomic_file(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """Give a new file to write, which takes the path's place once the body is done.

    Readers see the old file or the new one. What is in its place is replaced, never followed; if
    the body raises, it stays.

    Args:
        path: The file.
        mode: Its permissions; left out, private to user and group as the umask allows.

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
    """Give a new UTF-8 file, as :func:`atomic_file` does; line ends are written as they are."""
    with atomic_file(path) as file, io.TextIOWrapper(file, "utf-8", newline="") as text:
        yield text


def write_atomic(path: Path, content: str | bytes, mode: int | None = None) -> None:
    """Write a small file as :func:`atomic_file` does: readers see the old one or the new one."""
    with atomic_file(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_in_place(path: Path, content: bytes) -> None:
    """Write over a small file that nothing can replace, as it is a mount point.

    Readers may see it empty or cut off for a moment. Owner and permissions stay.

    Raises:
        NotRegularError: Something else is in its place.
        OSError: It cannot be written.
    """
    with open_folder(path.parent) as folder, naming(path):
        descriptor, _ = descriptor_of(path.name, os.O_WRONLY, folder=folder)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.truncate(0)
            file.write(content)


def write_if_absent(path: Path, content: str, mode: int | None = None) -> bool:
    """Write a small text file unless something is there; of many processes exactly one wins.

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

    What it wrote there takes the place of ``path`` once the body is done.
    """
    with tempfile.TemporaryDirectory(prefix="dynprof-") as private:
        made = Path(private) / path.name
        yield made
        with made.open("rb") as source, atomic_file(path) as sink:
            shutil.copyfileobj(source, sink, _PIECE)


def open_to_append(path: Path, *, follow_symlinks: bool = False) -> int:
    """Open or create a file to append to, and return its descriptor.

    A file that has a second name elsewhere, which may be a file of the job's user, is replaced.

    Args:
        path: The file. Its folder is no link.
        follow_symlinks: Open whatever file a link in its place leads to: the job's owner allows it.

    Raises:
        NotRegularError: Something else is in its place.
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
    """Rename a file or folder, also into another folder of the same disk.

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
        replace: Replace what has the name. Otherwise, of many processes exactly one gets it.

    Returns:
        Whether this call renamed the file; otherwise something else has the name.

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
    """Remove a file; a link itself, not what it leads to.

    Raises:
        OSError: It cannot be removed.
    """
    with open_folder(path.parent) as folder, naming(path):
        os.unlink(path.name, dir_fd=folder)


class PrivateFolder:
    """A new folder that only this process's user may enter, locked while this object has it.

    Args:
        place: Where to make it.

    Attributes:
        place: Where it is, as long as nobody moves it.
        path: What leads there for this process, wherever it is moved and whatever takes its name.

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
            self.create(MARK).close()  # then: a mark without a lock is a leftover
            failed.pop_all()

    def _checked(self) -> Path:
        """Return what leads there, unless another folder has taken its place since it was made."""
        others = os.listdir(self._descriptor)  # noqa: PTH208 - a descriptor
        if others or not (_is_private(self._descriptor) or trusts_all_users()):
            text = "it was made for this user alone, and others may write there"
            raise PermissionError(errno.EPERM, text)
        path = Path(f"/proc/self/fd/{self._descriptor}")
        with contextlib.suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(self._descriptor)):
                return path
        return self.place  # without /proc

    def create(self, name: str) -> BinaryIO:
        """Create a file in it, for writing bytes."""
        return open(opened(name, _NEW, FILE_MODE, folder=self._descriptor), "wb")  # noqa: PTH123

    def move_out(self, name: str, target: Path) -> None:
        """Move a file or folder out of it; a file also to another disk.

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
        """Remove it with what is in it; a second time has no effect.

        Args:
            is_in_use: A library that cannot be interrupted may still write there: its path must
                lead to no other folder, so the descriptor stays open.
        """
        if self._is_removed:
            return
        self._is_removed = True
        with contextlib.suppress(OSError):  # another process removes what is left
            _clear(self._descriptor)
            _remove_empty(self.place, self._descriptor)
        if not is_in_use:
            os.close(self._descriptor)


def remove_private(place: Path) -> bool:
    """Remove a private folder that a killed process left behind; return whether that was done.

    Nothing is removed where it is no such folder of this user's: another user may give any folder
    its name.
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
    """Remove what is in a private folder, the mark at last."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name == MARK)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(f"/proc/self/fd/{folder}/{entry.name}", ignore_errors=True)
        else:
            os.unlink(entry.name, dir_fd=folder)


def _remove_empty(place: Path, folder: int) -> None:
    """Remove a folder, unless another one has its name by now."""
    with open_folder(place.parent) as above:
        named = os.stat(place.name, dir_fd=above, follow_symlinks=False)
        if os.path.samestat(named, os.fstat(folder)):
            os.rmdir(place.name, dir_fd=above)


def _make_private(name: str, folder: int) -> None:
    """Take the permissions of others from a library's file, which has those of the umask."""
    descriptor = opened(name, os.O_RDONLY | os.O_NOFOLLOW, folder=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            os.fchmod(descriptor, mode & FILE_MODE)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _temporary_file(path: Path, mode: int | None) -> Iterator[tuple[BinaryIO, int, str]]:
    """Give a new file without a lasting name, its folder, and its name; remove it at the end."""
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
    """Give a file of a folder a second name, or there a new one, unless something has it."""
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

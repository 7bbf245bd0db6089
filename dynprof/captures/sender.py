"""``python -m dynprof.captures.sender < ORDER``: the training process starts it to send a capture.

An error ends it, and is the last line that it prints. To send captures that no job sends any more,
type ``python -I -m dynprof.captures.sender FOLDER TARGET``.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from dynprof.captures.deliveries import (
    DELIVERED,
    Order,
    files_of,
    remove_if_empty,
    renamed,
    try_timeout_s,
)
from dynprof.captures.manifest import MAX_BYTES, load_manifest
from dynprof.errors import describe
from dynprof.journal.journal import printable
from dynprof.runtime.acting_user import act_as_owner
from dynprof.runtime.destination import OUTGOING, is_url, why_no_destination
from dynprof.runtime.layout import (
    INFO_DIR,
    MANIFESTS,
    METADATA,
    RANK_NAME,
    Layout,
    free_disk_mb,
    own_metadata,
)
from dynprof.runtime.safe_open import folder_below, open_below, read_regular
from dynprof.runtime.safe_write import atomic_file
from dynprof.runtime.side_process import limit_file_size, with_size_limit
from dynprof.runtime.stale_folders import folder_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK_TIMEOUT_S = 30.0
"""Wait for the lock of other processes on the folder, in seconds; the job retries after that."""
SPARE_S = 5
"""Seconds after the job's own limit: the job ends a hanging try first, and reports it."""
_MANIFEST = re.compile(rf"info/({RANK_NAME})(?:\.[0-9]+)?\.info\.json")


def main(text: str) -> None:
    """Send the files of an order, and print where the last one is.

    Raises:
        Exception: Any error of the target's file system.
    """
    os.nice(10)
    send(Order.from_text(text))


def send_all(folder: Path, target: str) -> None:
    """Send the captures in a window's folder to another folder for it: a directory or a URL.

    Raises:
        Exception: As :func:`main` does; also if a job is about to send them.
    """
    if why := why_no_destination(target):
        raise ValueError(why)
    folder, place = folder.resolve(), target if is_url(target) else str(Path(target).resolve())
    with folder_lock(folder.parent) as acquired:
        if not acquired:
            raise BlockingIOError(f"a running process sends the captures in {folder.parent}")
        for path in sorted(folder.glob(f"{INFO_DIR}/{MANIFESTS}")):
            files = files_of(path, load_manifest(path))
            send(Order(str(folder), files, place, str(folder), (place,), False, 0))
    if folder.parent.parent.name == OUTGOING:  # any other folder may be a user's
        remove_if_empty(folder.parent)


def send(order: Order) -> None:
    """Send the files of an order, unless another process is sending them."""
    with folder_lock(Path(order.folder, order.files[-1]).parent) as acquired:
        if not acquired:
            raise BlockingIOError(f"another process is sending the capture in {order.folder}")
        _send(order)


def _send(order: Order) -> None:
    if _is_same_folder(order):
        raise FileExistsError(f"{order.folder} is the target itself; name another one")
    target, last = target_of(order), order.files[-1]
    if _MANIFEST.fullmatch(last) and not order.keeps:
        last = _put_capture(order, target)
    else:
        for file in order.files:
            _put(order, target, file, file)
    # The exit code may get lost, so the process prints this line. It prints it before it removes
    # the files: if the line cannot be printed, the files stay here.
    print(f"{DELIVERED}{target.where(last)}", file=sys.stderr, flush=True)
    if not order.keeps:
        with contextlib.suppress(OSError):
            _remove(Path(order.folder), order.files)


def _put_capture(order: Order, target: Target) -> str:
    """Put the files there under names that no other capture has; return the manifest's name.

    The trace is sent without the lock, because its name is unique anyway. Other senders choose
    their names once the files that carry this capture's name are there.
    """
    stem = Path(order.files[-1]).name.removesuffix(".info.json")
    own = (f"{INFO_DIR}/{stem}.", METADATA, own_metadata(stem))
    named = [file for file in order.files if file.startswith(own)]
    for file in order.files:
        if file not in named:
            _put(order, target, file, file)
    with target.locked():
        free = _free_stem(order, target)
        for file in named:
            if file == METADATA and _is_others(order, target, file):
                _put(order, target, file, own_metadata(free))
            else:
                _put(order, target, file, renamed(file, stem, free))
    return renamed(order.files[-1], stem, free)


def _is_others(order: Order, target: Target, file: str) -> bool:
    """Return whether the target has a file of this name with other content."""
    there = target.content(file)
    return there is not None and there != read_regular(Path(order.folder, file), MAX_BYTES)


def _put(order: Order, target: Target, file: str, name: str) -> None:
    # Others may write to this folder: their files are not sent in the name of the job's user.
    with open_below(Path(order.folder), PurePath(file)) as source:
        target.put(source, name)


def _is_same_folder(order: Order) -> bool:
    """Return whether source and target are one folder, which would be removed after sending."""
    with contextlib.suppress(FileNotFoundError):
        return not is_url(order.target) and Path(order.target).samefile(order.folder)
    return False


def _free_stem(order: Order, target: Target) -> str:
    """Return a stem for a capture's file names that no other capture at the target has.

    If this very capture is there already, it arrived and the report of it was lost.
    """
    own = read_regular(Path(order.folder, order.files[-1]), MAX_BYTES)
    found = _MANIFEST.fullmatch(order.files[-1])
    stem = first = found[1] if found else ""
    copy = 1
    while (existing := target.content(f"info/{stem}.info.json")) is not None and existing != own:
        copy += 1
        stem = f"{first}.{copy}"
    return stem


def _remove(folder: Path, files: tuple[str, ...]) -> None:
    """Remove the files that were sent, and the folders that are empty after that."""
    for file in map(PurePath, files):
        with contextlib.suppress(FileNotFoundError), folder_below(folder, file.parent) as below:
            os.unlink(file.name, dir_fd=below)
    emptied = {parent for file in files for parent in Path(folder, file).parents}
    for place in sorted(emptied, key=lambda place: len(place.parts), reverse=True):
        if place.is_relative_to(folder):
            with contextlib.suppress(OSError):
                place.rmdir()


def _end_in_time(order: Order) -> None:
    """End a try that hangs, as the job does, even if the job has ended since."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the job may ignore it
    signal.alarm(math.ceil(try_timeout_s(order)) + SPARE_S)


def _limit_files(order: Order) -> None:
    """Limit the size of this process's files: the source may grow while it is copied."""
    place = tempfile.gettempdir() if is_url(order.target) else order.target
    limit_file_size(Path(place), order.least_free_mb or 0.0)


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def _end(_: object, error: BaseException, __: object) -> None:
    """Print the error in one line: the job reads the last line, and a store may answer anything."""
    _say(with_size_limit(error, describe(error)))
    os._exit(1)  # at exit a cloud's package may print more, or hang


class Target(Protocol):
    """A folder, local or remote."""

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock the folder against other senders that choose names in it, where locks exist.

        Raises:
            OSError: Others hold the lock for too long.
        """

    def content(self, name: str) -> bytes | None:
        """Return the content of a small file in the folder; None if there is no such file."""

    def put(self, source: BinaryIO, name: str) -> None:
        """Copy an open file into the folder, whole or not at all.

        Raises:
            OSError: The file cannot be written.
        """

    def where(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""


class _Directory:
    """A folder of this machine or of a network file system."""

    def __init__(self, order: Order) -> None:
        self._folder = Path(order.target)
        places = tuple(map(Path, order.prof_dirs))
        self._layout = Layout.here(
            Path(order.root), 0, prof_dirs=places, follow_symlinks=order.follow_symlinks
        )
        self._least_free_mb = order.least_free_mb

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self._layout.make_dir(self._folder)
        with folder_lock(self._folder, patience_s=LOCK_TIMEOUT_S) as acquired:
            if not acquired:
                raise BlockingIOError(f"other processes have locked {self._folder}; try again")
            yield

    def content(self, name: str) -> bytes | None:
        path = self._folder / name
        return read_regular(path, MAX_BYTES) if path.exists() else None

    def put(self, source: BinaryIO, name: str) -> None:
        path = self._folder / name
        self._layout.make_dir(path.parent)
        self._check_disk(os.fstat(source.fileno()).st_size / 1e6)
        with atomic_file(path) as copy:
            shutil.copyfileobj(source, copy, 1 << 20)

    def where(self, name: str) -> str:
        return str(self._folder / name)

    def _check_disk(self, needed_mb: float) -> None:
        free_mb = free_disk_mb(self._folder)
        if self._least_free_mb is not None and free_mb - needed_mb < self._least_free_mb:
            raise OSError(
                f"{free_mb:,.0f} MB are free in {self._folder}, and limits.min_free_disk_mb keeps "
                f"{self._least_free_mb:,.0f} for the job"
            )


class _Remote:
    """A folder in one of fsspec's file systems."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs  # an extra: only jobs that send to a cloud need it

        self._files, self._path = url_to_fs(url, use_listings_cache=False)
        self._url = url

    def locked(self) -> contextlib.AbstractContextManager[None]:
        # Stores have no locks: if two senders choose one name at once, the later one wins.
        return contextlib.nullcontext()

    def content(self, name: str) -> bytes | None:
        files: Any = self._files
        try:
            found: bytes = files.cat_file(self._named(name))
        except FileNotFoundError:
            return None
        return found

    def put(self, source: BinaryIO, name: str) -> None:
        files: Any = self._files
        files.put_file(f"/dev/fd/{source.fileno()}", self._named(name))

    def where(self, name: str) -> str:
        return f"{self._url}/{name}"

    def _named(self, name: str) -> str:
        return f"{self._path.rstrip('/')}/{name}"


def target_of(order: Order) -> Target:
    """Return the target of an order."""
    return _Remote(order.target) if is_url(order.target) else _Directory(order)


if __name__ == "__main__":
    sys.excepthook = _end
    if len(sys.argv) > 2:
        folder = act_as_owner(Path(sys.argv[1]), printable, module="dynprof.captures.sender")
        send_all(folder, sys.argv[2])
    else:
        text = sys.stdin.read()
        _end_in_time(Order.from_text(text))
        _limit_files(Order.from_text(text))
        main(text)
    os._exit(0)  # as above

"""Targets of a delivery: a directory that the rules allow, or a URL that fsspec opens."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from dynprof.captures.manifest import MAX_BYTES
from dynprof.runtime.destination import is_url
from dynprof.runtime.layout import Layout, free_disk_mb
from dynprof.runtime.output import atomic_file
from dynprof.runtime.safe_open import read_regular
from dynprof.runtime.stale_folders import folder_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.captures.delivery_order import Order

LOCK_TIMEOUT_S = 30.0
"""Wait for the lock of other processes on the folder, in seconds; the job retries after that."""


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

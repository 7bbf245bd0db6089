"""Stop saving a capture before it takes the disk space that the job needs."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, DynprofError
from dynprof.runtime.layout import free_disk_mb
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

POLL_S = 0.2
"""Interval between checks, in seconds; a fast disk writes some 400 MB in it."""


class DiskGuard:
    """Watches the free space of one folder.

    Args:
        folder: The folder that is written to; its files are cut if space runs out.
        least_mb: How many MB (10^6 bytes) must stay free; None for no limit.
    """

    def __init__(self, folder: Path, least_mb: float | None) -> None:
        self._folder = folder
        self._least_mb = least_mb or 0.0
        self._cut = False

    def check(self) -> None:
        """Raise if too little space is free.

        Raises:
            CaptureError: Too little space is free.
        """
        if self._too_little():
            raise CaptureError(self._message())

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch while the body, which cannot be interrupted, writes into the folder.

        Truncates its files to zero bytes whenever too little space is free.

        Raises:
            CaptureError: Files were truncated, or the body failed and the disk is full.
        """
        self.check()
        done = threading.Event()
        thread = own_thread(self._poll, "dynprof-disk", done)
        with contextlib.suppress(RuntimeError):  # the interpreter is ending: it starts no threads
            thread.start()
        try:
            yield
        except (OSError, DynprofError) as error:
            if self._cut or free_disk_mb(self._folder) < 1:
                raise CaptureError(self._message()) from error
            raise
        finally:
            done.set()
        if self._cut:
            raise CaptureError(self._message())

    def _poll(self, done: threading.Event) -> None:
        while not done.wait(POLL_S):
            if self._too_little():
                self._cut = True
                self._cut_files()

    def _cut_files(self) -> None:
        with contextlib.suppress(OSError):  # the folder may have been removed
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    os.truncate(path, 0)

    def _too_little(self) -> bool:
        return free_disk_mb(self._folder) < self._least_mb

    def _message(self) -> str:
        free = f"{free_disk_mb(self._folder):,.0f} MB"
        if not self._least_mb:
            return f"the disk is full: {free} are free where the capture goes"
        return (
            f"the disk filled up while the capture was saved: {free} are free there, and "
            f"limits.min_free_disk_mb keeps {self._least_mb:,.0f} for the job"
        )

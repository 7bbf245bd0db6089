"""What the system tells of changes in one directory, through watchdog."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import TYPE_CHECKING

import watchdog.events
from watchdog.events import (
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SIGNALS = [FileClosedEvent, FileMovedEvent, FileCreatedEvent, FileDeletedEvent, FileModifiedEvent]
if hasattr(watchdog.events, "FileAttribEvent"):  # a new time; before 7.1 it was a modification
    _SIGNALS.append(watchdog.events.FileAttribEvent)

# Where nobody handles what a library logs, logging writes it to the job's stderr.
logging.getLogger("watchdog").addHandler(logging.NullHandler())


class FileEvents:
    """Calls ``wake`` when a file changes, on a thread of watchdog's.

    Args:
        file: The file; its directory is watched.
        wake: Called without arguments.
        any_file: Whether changes of other files beside it count as well.

    Raises:
        OSError: The directory is gone, or the system has no more of what it takes.
        RuntimeError: No thread can be started.
    """

    def __init__(self, file: Path, wake: Callable[[], None], *, any_file: bool) -> None:
        self._observer = Observer()
        self._observer.schedule(
            _Waker("" if any_file else str(file), wake),
            str(file.parent),
            event_filter=_SIGNALS if os.uname().sysname == "Linux" else None,
        )
        try:
            self._observer.start()
        except (OSError, RuntimeError):
            with contextlib.suppress(RuntimeError):  # it waits for what was not started
                self._observer.stop()
            raise

    def end(self) -> None:
        """End the threads, and close what events come through."""
        self._observer.unschedule_all()
        self._observer.stop()
        self._observer.join(timeout=5)


class _Waker(FileSystemEventHandler):
    """Wakes the watcher when the file changes; without a path, when anything does."""

    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self._path, self._wake = path, wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if not self._path or self._path in (event.src_path, event.dest_path):
            self._wake()

"""What the system tells of changes in one directory, through watchdog.

A script that closes all descriptors by number closes those of watchdog's as well, which then reads
in vain as fast as it can. What has their numbers by then is not closed, read or written here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from watchdog.observers.api import EventDispatcher
from watchdog.utils import BaseThread

from dynprof.files.far_descriptors import moved_far
from dynprof.process.descriptors import descriptors_of, link_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KIND = "anon_inode:inotify"
"""What a descriptor is through which file events come."""
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
        before = set(threading.enumerate())
        with _far_numbers():
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
        started = set(threading.enumerate()) - before
        self._threads = [thread for thread in started if isinstance(thread, BaseThread)]
        self._descriptors = _descriptors_for(file.parent)
        for descriptor in self._descriptors:
            os.set_inheritable(descriptor, False)  # watchdog has it kept by each exec of a job's

    @property
    def are_cut_off(self) -> bool:
        """Whether the script has closed what they come through."""
        return any(link_of(number) != _KIND for number in self._descriptors)

    def end(self) -> None:
        """End the threads, and close what events come through."""
        if self.are_cut_off:
            self._leave()
            return
        self._observer.unschedule_all()
        self._observer.stop()
        self._observer.join(timeout=5)

    def _leave(self) -> None:
        """Have the threads end, which read in vain as fast as they can, and touch no descriptor."""
        for thread in self._threads:
            thread.stopped_event.set()
        self._observer.event_queue.put(EventDispatcher.stop_event)


class _Waker(FileSystemEventHandler):
    """Wakes the watcher when the file changes; without a path, when anything does."""

    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self._path, self._wake = path, wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if not self._path or self._path in (event.src_path, event.dest_path):
            self._wake()


@contextlib.contextmanager
def _far_numbers() -> Iterator[None]:
    """Have watchdog's descriptors out of a script's way: a pipe of its own would be read from."""
    module: Any = sys.modules.get("watchdog.observers.inotify_c")
    if module is None:  # on another system
        yield
        return
    system, begin = module.os, module.inotify_init
    module.os = _WithFarPipes(system)
    module.inotify_init = lambda: moved_far(near) if (near := begin()) >= 0 else near
    try:
        yield
    finally:
        module.os, module.inotify_init = system, begin


class _WithFarPipes:
    """The module ``os``, but for the numbers of its pipes."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Any:
        return getattr(self._system, name)

    def pipe(self) -> tuple[int, int]:
        """Open one."""
        entry, exit_ = self._system.pipe()
        return moved_far(entry), moved_far(exit_)


def _descriptors_for(directory: Path) -> list[int]:
    """Return those through which the system sends this process what happens in a directory."""
    found = []
    with contextlib.suppress(OSError):  # the directory is gone
        inode = f" ino:{directory.stat().st_ino:x} "
        for number in descriptors_of(_KIND):
            with contextlib.suppress(OSError):  # it has been closed meanwhile
                if inode in Path(f"/proc/self/fdinfo/{number}").read_text():
                    found.append(number)
    return found

"""One file -> edits: one :class:`Edit` for each save, however it is made.

The directory is watched, not the file, because editors save by renaming. File system events
only wake the watcher up; what counts is what a safe reading of the file then finds. So a lost
event costs a few seconds, never a request, and where there are no events at all (network file
systems) the same reading is done by the clock, for all processes of a machine by one of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Literal

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

from dynprof.requests.edits import HALF_WRITTEN_S, Edit, EditDetector, Reading, read
from dynprof.runtime.file_system import is_mount_point, is_remote, kind_of
from dynprof.runtime.layout import CONFIG_NAME
from dynprof.runtime.shared_polling import SharedPolling
from dynprof.runtime.threads import brisk_switching, own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WatchMode = Literal["events", "poll"]
START_TIMEOUT_S = 60.0
"""For so long ``init()`` waits for events at most; without memory they may come later."""
POLL_S = 0.5
"""Between readings where the file system sends no events."""
CHECK_S = 2.0
"""Between readings where it does: the net under a lost event and a replaced directory."""


def choose_mode(asked: str | None, directory: Path) -> tuple[WatchMode, str]:
    """Decide between events and polling, and say why.

    Args:
        asked: What ``init(watch=...)`` was given; else ``DYNPROF_WATCH`` decides, else the file
            system.
        directory: The directory to watch.

    Raises:
        ValueError: ``asked`` or the variable is none of ``auto``, ``events``, ``poll``.
    """
    for source, value in (("watch", asked), ("DYNPROF_WATCH", os.environ.get("DYNPROF_WATCH"))):
        if value in ("events", "poll"):
            return value, f"{source}={value}"  # type: ignore[return-value]
        if value not in (None, "", "auto"):
            raise ValueError(f'{source}="{value}" is none of "auto", "events", "poll"')
    if is_mount_point(directory / CONFIG_NAME):
        return "poll", "the config is a mount of its own, whose directory tells nothing of it"
    kind = kind_of(directory)
    if is_remote(kind):
        return "poll", f"a {kind} file system does not announce the changes of other machines"
    return "events", f"{kind or 'unknown'} file system"


class Watcher:
    """Calls ``on_edit`` from a thread of its own, once for each save.

    Args:
        path: The file.
        at_start: What lay there when watching began; it is never an edit.
        on_edit: Called with each edit.
        attempt: Runs an action and keeps its exceptions from ending the thread.
        say: Called with a sentence when the way of watching changes.
        mode: How to watch to begin with; falls back to polling where events cannot be had.
        follow_symlinks: Read the file through symbolic links.
    """

    def __init__(
        self,
        path: Path,
        at_start: Reading,
        *,
        on_edit: Callable[[Edit], None],
        attempt: Callable[[str, Callable[[], object]], object],
        say: Callable[[str], None],
        mode: WatchMode,
        follow_symlinks: bool = False,
    ) -> None:
        self._path, self._follow_symlinks = path, follow_symlinks
        self._detector = EditDetector(at_start, time.time_ns())
        self._shared = SharedPolling(f"{path.absolute()} in {_identity(path.parent)}")
        self._on_edit, self._attempt, self._say = on_edit, attempt, say
        self._mode: WatchMode = mode
        self._events: FileEvents | None = None
        self._observed: tuple[int, int] | None = None
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._started = threading.Event()
        self._thread = own_thread(self._run, "dynprof-watch")

    @property
    def mode(self) -> WatchMode:
        """How the file is watched now."""
        return self._mode

    def start(self) -> None:
        """Begin to watch; events are on when this returns."""
        self._thread.start()
        self._started.wait(START_TIMEOUT_S)

    def stop(self) -> None:
        """End the threads."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._shared.end()

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            self._end_events()  # here: watchdog waits for its own threads, without a limit

    def _watch(self) -> None:
        try:  # here, because watchdog's threads leave signals to the job as this one does
            self._attempt("watching the config", self._renew_events)
        finally:
            self._started.set()
        while not self._stopping.is_set():
            self._wake.wait(self._interval_s())
            self._wake.clear()
            if not self._stopping.is_set():
                self._attempt("watching the config", self._check)

    def _interval_s(self) -> float:
        if self._detector.is_pending:
            return HALF_WRITTEN_S / 4
        return CHECK_S if self._mode == "events" else POLL_S

    def _check(self) -> None:
        polls = self._mode == "poll"
        if polls and not self._detector.is_pending and self._shared.another_sees_the_same():
            return
        with brisk_switching():
            reading = read(self._path, follow_symlinks=self._follow_symlinks)
            if polls:
                self._shared.has_seen(hashlib.sha256(repr(reading).encode()).hexdigest())
            edit = self._detector.observe(reading, time.monotonic(), time.time())
            if edit:
                self._on_edit(edit)
        self._renew_events()

    def _renew_events(self) -> None:
        """Watch the directory that stands there now; it may have been removed or replaced."""
        if self._mode == "poll":
            return
        directory = _identity(self._path.parent)
        if directory == self._observed:
            return
        self._end_events()
        if directory is not None:
            self._begin_events(directory)

    def _begin_events(self, directory: tuple[int, int]) -> None:
        try:
            events = FileEvents(self._path, self._wake.set, any_file=self._follow_symlinks)
        except (OSError, RuntimeError) as error:
            # No more inotify instances, watches or threads, or the directory is gone.
            if _identity(self._path.parent) is not None:
                number = getattr(error, "errno", None)
                self._poll(os.strerror(number) if number else str(error))
            return
        self._events, self._observed = events, directory

    def _poll(self, reason: str) -> None:
        self._mode = "poll"
        self._say(f"polling every {POLL_S} s, as events cannot be had: {reason}")

    def _end_events(self) -> None:
        events, self._events, self._observed = self._events, None, None
        if events is not None:
            events.end()


def _identity(directory: Path) -> tuple[int, int] | None:
    try:
        facts = directory.stat()
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


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

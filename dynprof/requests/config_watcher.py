"""Watch one file and report one :class:`Edit` for each save, whatever way it is saved.

The watcher observes the directory, not the file, because editors save by renaming. File system
events only wake the watcher up; a safe reading of the file decides. So a lost event costs a few
seconds, never a request. Network file systems send no events. There, one process of each machine
reads the file at intervals for all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import queue
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

from dynprof.requests.edit_detection import HALF_WRITTEN_S, EditDetector, Reading, read
from dynprof.runtime.file_system import is_mount_point, is_remote, kind_of
from dynprof.runtime.layout import CONFIG_NAME
from dynprof.runtime.shared_polling import SharedPolling
from dynprof.runtime.threads import fast_switching, own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.requests.edit_detection import Repetition
    from dynprof.requests.request import Edit

WatchMode = Literal["events", "poll"]
START_TIMEOUT_S = 60.0
"""Longest wait of ``init()`` for events, in seconds; when memory is short they may start later."""
POLL_S = 0.5
"""Seconds between readings if the file system sends no events."""
CHECK_S = 2.0
"""Seconds between readings if it does, in case an event is lost or the directory is replaced."""
_SIGNALS = [FileClosedEvent, FileMovedEvent, FileCreatedEvent, FileDeletedEvent, FileModifiedEvent]
if hasattr(watchdog.events, "FileAttribEvent"):  # a new time; before 7.1 it was a modification
    _SIGNALS.append(watchdog.events.FileAttribEvent)

# Without a handler, logging writes the library's messages to the job's stderr.
logging.getLogger("watchdog").addHandler(logging.NullHandler())


def choose_mode(asked: str | None, directory: Path) -> tuple[WatchMode, str]:
    """Choose between events and polling; return the choice and the reason.

    Args:
        asked: The argument of ``init(watch=...)``. Without it ``DYNPROF_WATCH`` decides, then the
            file system.
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
        return "poll", "the config is a mount point, so its directory sends no events for it"
    kind = kind_of(directory)
    if is_remote(kind):
        return "poll", f"a {kind} file system sends no events for changes by other machines"
    return "events", f"{kind or 'unknown'} file system"


class Watcher:
    """Calls ``on_edit`` on its own thread, once for each save.

    Args:
        path: The file.
        at_start: The reading when watching began; it is never an edit.
        on_edit: Called with each edit.
        attempt: Runs an action and keeps its exceptions from ending the thread.
        say: Called with a message when the mode changes.
        mode: How to watch at first; falls back to polling if events are not available.
        follow_symlinks: Read the file through symbolic links.
        repetition: Says when the edit of a save that asked for baselines is due again.
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
        repetition: Repetition | None = None,
    ) -> None:
        self._path, self._follow_symlinks = path, follow_symlinks
        self._repetition = repetition
        self._detector = EditDetector(at_start, time.time_ns())
        self._shared = SharedPolling(f"{path.absolute()} in {_identity(path.parent)}")
        self._on_edit, self._attempt, self._say = on_edit, attempt, say
        self._mode: WatchMode = mode
        self._events: FileEvents | None = None
        self._observed: tuple[int, int] | None = None
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._own: queue.SimpleQueue[Edit] = queue.SimpleQueue()
        self._started = threading.Event()
        self._thread = own_thread(self._run, "dynprof-watch")

    @property
    def mode(self) -> WatchMode:
        """The current watch mode."""
        return self._mode

    def start(self) -> None:
        """Start watching; events are on when this returns."""
        self._thread.start()
        self._started.wait(START_TIMEOUT_S)

    def submit(self, edit: Edit) -> None:
        """Have an edit of dynprof's own handled on the watcher's thread."""
        self._own.put(edit)
        self._wake.set()

    def stop(self) -> None:
        """Stop the threads."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)
        self._shared.end()

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            self._end_events()  # on this thread: watchdog joins its threads without a timeout

    def _watch(self) -> None:
        try:  # on this thread, so that watchdog's threads inherit its blocked signals
            self._attempt("watching the config", self._renew_events)
        finally:
            self._started.set()
        while not self._stopping.is_set():
            self._wake.wait(self._interval_s())
            self._wake.clear()
            if not self._stopping.is_set():
                self._attempt("watching the config", self._check)
                self._attempt("requesting a window", self._handle_own)
                self._attempt("recording a baseline", self._repeat)

    def _repeat(self) -> None:
        if self._repetition and (edit := self._repetition.due()):
            self._on_edit(edit)

    def _interval_s(self) -> float:
        if self._detector.is_pending:
            return HALF_WRITTEN_S / 4
        usual_s = CHECK_S if self._mode == "events" else POLL_S
        return min(usual_s, self._repetition.wait_s()) if self._repetition else usual_s

    def _handle_own(self) -> None:
        with contextlib.suppress(queue.Empty):
            self._on_edit(self._own.get_nowait())

    def _check(self) -> None:
        polls = self._mode == "poll"
        if polls and not self._detector.is_pending and self._shared.is_up_to_date():
            return
        with fast_switching():
            reading = read(self._path, follow_symlinks=self._follow_symlinks)
            if polls:
                self._shared.report_seen(hashlib.sha256(repr(reading).encode()).hexdigest())
            edit = self._detector.observe(reading, time.monotonic(), time.time())
            if edit:
                self._on_edit(edit)
        self._renew_events()

    def _renew_events(self) -> None:
        """Observe the current directory, which may have been removed or replaced."""
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
            # No inotify instances, watches or threads are left, or the directory is gone.
            if _identity(self._path.parent) is not None:
                number = getattr(error, "errno", None)
                self._poll(os.strerror(number) if number else str(error))
            return
        self._events, self._observed = events, directory

    def _poll(self, reason: str) -> None:
        self._mode = "poll"
        self._say(f"polling every {POLL_S} s, because file events are not available: {reason}")

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


class FileEvents:
    """Calls ``wake`` on a thread of watchdog when a file changes.

    Args:
        file: The file; its directory is watched.
        wake: Called without arguments.
        any_file: Whether changes of other files in its directory count too.

    Raises:
        OSError: The directory is gone, or a system limit is reached.
        RuntimeError: No thread can start.
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
            with contextlib.suppress(RuntimeError):  # it joins a thread that did not start
                self._observer.stop()
            raise

    def end(self) -> None:
        """Stop the threads and close the source of events."""
        self._observer.unschedule_all()
        self._observer.stop()
        self._observer.join(timeout=5)


class _Waker(FileSystemEventHandler):
    """Wakes the watcher when the file changes; without a path, when any file does."""

    def __init__(self, path: str, wake: Callable[[], None]) -> None:
        self._path, self._wake = path, wake

    def on_any_event(self, event: FileSystemEvent) -> None:
        if not self._path or self._path in (event.src_path, event.dest_path):
            self._wake()

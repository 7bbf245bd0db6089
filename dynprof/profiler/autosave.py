"""Save traces that the script never requests, in the folder of the vendor's raw data.

A script can request the trace or the results of a profile without a handler while it has the
profile. The same applies if the handler failed. The exporter saves a trace that was not requested
when the profile is deleted, records again, or the process ends. Garbage collection can delete an
object while any lock is held. So the finalizer only puts a job into the exporter's queue.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.backends.torch.closing import start_self_test
from dynprof.config import Limits
from dynprof.errors import CaptureError, DynprofError, describe
from dynprof.profiler.output_paths import remove_stale_files
from dynprof.profiler.saving import (
    default_folder,
    export_of,
    exporter,
    follow_up,
    trace_name,
    usable_folder,
    wait_at_end,
    worker_here,
)
from dynprof.profiler.script_windows import END_ACTIONS
from dynprof.runtime.plural import counted
from dynprof.runtime.process_hooks import call_in_child
from dynprof.runtime.standard_streams import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.captures.exporter import Exporter
    from dynprof.profiler.closed_window import ClosedWindow

MAX_AUTOSAVES = 10
"""Most traces that a process saves in this way: each keeps its events in memory until then."""
HOW_TO_CHOOSE = (
    "set on_trace_ready=tensorboard_trace_handler(...) to choose where traces go, or "
    "on_trace_ready=lambda _: None to drop them"
)


@dataclass(frozen=True, eq=False)
class _Kept:
    """A window with the exporter of its trace, the folders for it, and why it is saved."""

    window: ClosedWindow
    exporter: Exporter
    folder: Path
    instead: Path
    why: str


class Autosave:
    """The newest window of a profile, until the script requests something of the profile.

    It has no reference to the profile, which could not be garbage-collected otherwise.

    Args:
        profile: The profile.
    """

    def __init__(self, profile: object) -> None:
        self._kept: _Kept | None = None
        self._is_requested = False
        weakref.finalize(profile, self.submit).atexit = False  # at exit, end() submits it

    def keep(self, window: ClosedWindow) -> None:
        """Keep a window that was just closed, unless an earlier window was requested."""
        if not self._is_requested:
            self._keep(window, "the trace of a profile was not requested")

    @contextlib.contextmanager
    def rescuing(self, window: ClosedWindow, call: str) -> Iterator[None]:
        """Keep a window if the body fails with it and its trace can still be saved."""
        failed = True
        try:
            yield
            failed = False
        finally:
            if failed and window.can_be_written:
                self._keep(window, f"{call} failed with the trace of a profile")

    def _keep(self, window: ClosedWindow, why: str) -> None:
        self._drop()
        self._kept = _Kept(window, exporter(), *_folders_now(), why)
        _autosaves.kept.add(self._kept)

    def _drop(self) -> None:
        kept, self._kept = self._kept, None
        if kept:
            _autosaves.kept.discard(kept)

    def cancel(self) -> None:
        """Note a request of the script; windows of this profile are no longer autosaved."""
        self._is_requested = True
        self._drop()

    def submit(self) -> None:
        """Queue the kept window for saving, if there is one; takes no lock."""
        kept, self._kept = self._kept, None
        if kept:
            _autosaves.submit(kept)


def _folders_now() -> tuple[Path, Path]:
    """Return the current folder for traces, and the fallback if it is not writable.

    Both are absolute, because the script may change its working directory.
    """
    folder, instead = default_folder(), Path()
    with contextlib.suppress(FileNotFoundError):  # it was removed; saving reports that later
        return folder.absolute(), instead.absolute()
    return folder, instead


class _Autosaves:
    """The autosaves of this process.

    Attributes:
        kept: Windows that the script can still request.
    """

    def __init__(self) -> None:
        self.kept: set[_Kept] = set()
        self._queued: deque[_Kept] = deque()
        self._deferred: _Kept | None = None
        self._numbers = itertools.count()
        self._ending = threading.Event()

    def submit(self, kept: _Kept) -> None:
        """Queue a kept window for saving; takes no lock."""
        try:
            self.kept.remove(kept)
        except KeyError:  # submitted by another thread, or the parent's
            return
        number = next(self._numbers)
        if number < MAX_AUTOSAVES:
            self._queued.append(kept)
            doing = f"{kept.why}; it is lost, because saving it in {kept.folder}"
            kept.exporter.run(doing, self._save_next)
        elif number == MAX_AUTOSAVES:
            text = (
                f"of the traces that were not requested, only the first {MAX_AUTOSAVES} are saved"
            )
            kept.exporter.run(text, lambda: say(f"{text} ({HOW_TO_CHOOSE})"))

    def end(self) -> None:
        """Save all remaining windows, and wait for that."""
        self._ending.set()
        for kept in self.kept.copy():
            self.submit(kept)
        if self._queued or self._deferred:
            exporter().run("saving the last trace of a profile", self._save_deferred)
        wait_at_end()
        if lost := len(self._queued) + bool(self._deferred):
            traces = counted(lost, "trace of a profile", "traces of profiles")
            say(f"saving was given up because the process ended; also lost: {traces}")

    def _save_next(self) -> None:
        """Save a window; one whose saving would block the training waits for the process's end."""
        kept = self._queued.popleft()
        recording = kept.window.recording
        while not (self._ending.is_set() or recording.saves_concurrently) and start_self_test():
            self._ending.wait(0.05)
        if self._ending.is_set() or recording.saves_concurrently:
            _save(kept)
            return
        if self._deferred:
            text = "of several traces that were not requested, only the last is saved"
            say(f"{text} ({HOW_TO_CHOOSE})")
        self._deferred = kept

    def _save_deferred(self) -> None:
        kept, self._deferred = self._deferred, None
        if kept is None:
            return
        try:
            _save(kept)
        except (OSError, DynprofError) as error:
            raise CaptureError(f"{kept.why}; it is lost: {describe(error)}") from error


def _save(kept: _Kept) -> None:
    folder, why = usable_folder(kept.folder, kept.instead)
    if why:
        say(why)
    remove_stale_files(folder)
    window, worker = kept.window, worker_here()
    if window.is_private:  # its handler could not save it in its folder
        _say_saved(kept, window.write(folder / trace_name(worker, window.suffix)))
        return
    export = export_of(window, folder, worker, least_free_mb=Limits().min_free_disk_mb)

    def report(*_: object) -> None:
        follow_up(export, analyse=False)
        if export.manifest.trace:
            _say_saved(kept, export.trace_path)

    export.on_end = report
    kept.exporter.save(export)


def _say_saved(kept: _Kept, trace: Path) -> None:
    say(f"{kept.why}; it was saved as {trace} ({HOW_TO_CHOOSE})")


_autosaves = _Autosaves()


def _reset_in_child() -> None:
    global _autosaves
    _autosaves = _Autosaves()


END_ACTIONS.append(lambda: _autosaves.end())
call_in_child(_reset_in_child)

"""Autosave: a trace that the script never requests is saved where the vendor's raw data would be.

The script may request the trace or the results of a profile without a handler as long as it has
the profile; the same holds where the handler failed. The exporter saves what was not requested
once the profile is thrown away, records again, or the process ends. An object may end inside any
lock, as in a collection of garbage; so its end only puts a job into the exporter's queue.
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
from dynprof.profiler.output_paths import tidy
from dynprof.profiler.saving import (
    export_of,
    exporter,
    follow_up,
    trace_name,
    usable_folder,
    usual_folder,
    wait_at_end,
    worker_here,
)
from dynprof.profiler.script_windows import AFTERWARDS
from dynprof.runtime.forked_child import forget_in_child
from dynprof.runtime.plural import counted
from dynprof.runtime.warnings_to_script import say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.captures.exporter import Exporter
    from dynprof.profiler.closed_window import ClosedWindow

MOST = 10
"""Number of such traces that a process saves: until then each has its events in memory."""
HOW_ELSE = (
    "on_trace_ready=tensorboard_trace_handler(...) says where traces go, on_trace_ready=lambda _: "
    "None that none is wanted"
)


@dataclass(frozen=True, eq=False)
class _Kept:
    """A window, with what saves its trace, where to, and why nothing else takes it."""

    window: ClosedWindow
    exporter: Exporter
    folder: Path
    instead: Path
    why: str


class Autosave:
    """The newest window of a profile, until the script requests something of the profile.

    It does not know the profile, which could not be thrown away else.

    Args:
        profile: Whose windows.
    """

    def __init__(self, profile: object) -> None:
        self._kept: _Kept | None = None
        self._is_requested = False
        weakref.finalize(profile, self.submit).atexit = False  # the process's end comes in time

    def keep(self, window: ClosedWindow) -> None:
        """Take a window that has just been closed, unless one before it was requested."""
        if not self._is_requested:
            self._keep(window, "the trace of a profile was not requested")

    @contextlib.contextmanager
    def rescuing(self, window: ClosedWindow, call: str) -> Iterator[None]:
        """Take a window with which the body fails, unless nothing is left of it to be saved."""
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
        """Note that the script requested something: no window of the profile is saved any more."""
        self._is_requested = True
        self._drop()

    def submit(self) -> None:
        """Have the window saved, if there is one; takes no lock."""
        kept, self._kept = self._kept, None
        if kept:
            _autosaves.submit(kept)


def _folders_now() -> tuple[Path, Path]:
    """Return where a trace of this moment goes, though the script may change its directory.

    The other one serves where nothing can be written in the first.
    """
    folder, instead = usual_folder(), Path()
    with contextlib.suppress(FileNotFoundError):  # it was removed; saving says so then
        return folder.absolute(), instead.absolute()
    return folder, instead


class _Autosaves:
    """Those of this process.

    Attributes:
        kept: The windows that the script may still request.
    """

    def __init__(self) -> None:
        self.kept: set[_Kept] = set()
        self._queued: deque[_Kept] = deque()
        self._deferred: _Kept | None = None
        self._numbers = itertools.count()
        self._ending = threading.Event()

    def submit(self, kept: _Kept) -> None:
        """Have a window saved that is kept still; takes no lock."""
        try:
            self.kept.remove(kept)
        except KeyError:  # submitted by another thread, or the parent's
            return
        number = next(self._numbers)
        if number < MOST:
            self._queued.append(kept)
            doing = f"{kept.why}; it is lost, for saving it in {kept.folder}"
            kept.exporter.run(doing, self._save_next)
        elif number == MOST:
            text = f"of the traces that were not requested, only the first {MOST} are saved"
            kept.exporter.run(text, lambda: say(f"{text} ({HOW_ELSE})"))

    def end(self) -> None:
        """Have all saved that is left, and wait for it."""
        self._ending.set()
        for kept in self.kept.copy():
            self.submit(kept)
        if self._queued or self._deferred:
            exporter().run("saving the last trace of a profile", self._save_deferred)
        wait_at_end()
        if lost := len(self._queued) + bool(self._deferred):
            traces = counted(lost, "trace of a profile", "traces of profiles")
            say(f"saving was given up as the process ended; lost too: {traces}")

    def _save_next(self) -> None:
        """Save a window; one that would keep the training waiting at the end of the process."""
        kept = self._queued.popleft()
        recording = kept.window.recording
        while not (self._ending.is_set() or recording.saves_concurrently) and start_self_test():
            self._ending.wait(0.05)
        if self._ending.is_set() or recording.saves_concurrently:
            _save(kept)
            return
        if self._deferred:
            text = "of several traces that were not requested, only the last is saved"
            say(f"{text} ({HOW_ELSE})")
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
    tidy(folder)
    window, worker = kept.window, worker_here()
    if window.is_private:  # its handler could not put it where it wanted it
        _say_saved(kept, window.write(folder / trace_name(worker, window.suffix)))
        return
    export = export_of(window, folder, worker, least_free_mb=Limits().min_free_disk_mb)

    def tell(*_: object) -> None:
        follow_up(export, analyse=False)
        if export.manifest.trace:
            _say_saved(kept, export.trace_path)

    export.on_end = tell
    kept.exporter.save(export)


def _say_saved(kept: _Kept, trace: Path) -> None:
    say(f"{kept.why}; it was saved as {trace} ({HOW_ELSE})")


_autosaves = _Autosaves()


def _forget_in_child() -> None:
    global _autosaves
    _autosaves = _Autosaves()


AFTERWARDS.append(lambda: _autosaves.end())
forget_in_child(_forget_in_child)

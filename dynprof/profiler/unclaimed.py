"""What profiles recorded and nobody asked for: saved where the vendor's raw data would lie.

A profile without a handler may be asked for its trace or its results as long as the script has it,
and so may one whose handler failed. What was not asked for by then is saved, on a thread of its
own: once the profile is thrown away, records anew, or the process ends. The end of an object may
come anywhere, amid any lock, as a collection of garbage does; so nothing is done there but to put
its window into a queue.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
import weakref
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.backends.closing import is_being_tested
from dynprof.captures.exporter import Exporter
from dynprof.config import Limits
from dynprof.process.forked_child import forget_in_child
from dynprof.process.standard_error import say
from dynprof.process.threads import own_thread
from dynprof.profiler.handlers import (
    save_now,
    trace_name,
    usable_folder,
    usual_folder,
    worker_here,
)
from dynprof.profiler.script_windows import AFTERWARDS
from dynprof.profiler.tidying import tidy
from dynprof.wall import StderrNotes, Wall

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.profiler.closed_window import ClosedWindow

MOST = 10
"""So many traces of a process are saved that nobody asked for, and so many wait for that; each has
its events in memory, and a disk may hang, so the oldest gives way."""
EXIT_WAIT_S = 30.0
"""For so long the end of the process waits for them."""
HOW_ELSE = (
    "on_trace_ready=tensorboard_trace_handler(...) says where traces go, on_trace_ready=lambda _: "
    "None that none is wanted"
)


@dataclass(frozen=True)
class _Held:
    """A window, with where its trace would go, whose it is, and why it has no other taker."""

    window: ClosedWindow
    folder: Path
    instead: Path
    pid: int
    why: str


class Unclaimed:
    """The newest window of a profile, until something is asked of the profile.

    It does not know the profile, which could not be thrown away else.

    Args:
        profile: Whose windows.
    """

    def __init__(self, profile: object) -> None:
        self._held: list[_Held] = []
        self._asked = False
        weakref.finalize(profile, self.let_go).atexit = False  # _end_all() comes in time

    def keep(self, window: ClosedWindow) -> None:
        """Take a window that has just been closed, unless one before it was asked for."""
        if not self._asked:
            self._hold(window, "nobody asked for the trace of a profile")

    @contextlib.contextmanager
    def rescuing(self, window: ClosedWindow, call: str) -> Iterator[None]:
        """Take a window with which the body fails, unless nothing is left of it to be saved."""
        failed = True
        try:
            yield
            failed = False
        finally:
            if failed and window.can_be_written:
                self._hold(window, f"{call} failed with the trace of a profile")

    def _hold(self, window: ClosedWindow, why: str) -> None:
        _SAVER.start()
        self._held[:] = [_Held(window, *_folders_now(), os.getpid(), why)]
        _known.add(self)

    def claim(self) -> None:
        """Note that something was asked of the profile: nothing of it is saved any more."""
        self._asked = True
        self._held.clear()

    def let_go(self) -> None:
        """Have the window saved, if there is one; takes no lock."""
        with contextlib.suppress(IndexError):
            held = self._held.pop()
            if held.pid == os.getpid():  # a forked child's windows are its parent's
                _SAVER.put(held)


def _folders_now() -> tuple[Path, Path]:
    """Return where a trace of this moment goes, though the script may change its directory.

    The other one serves where nothing can be written in the first.
    """
    folder, instead = usual_folder(), Path()
    with contextlib.suppress(FileNotFoundError):  # it was removed; saving says so then
        return folder.absolute(), instead.absolute()
    return folder, instead


class _Saver:
    """Saves one window after the other, on a thread that starts with the first profile."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew in a forked child, which has no such thread."""
        self._waiting = deque[_Held](maxlen=MOST)
        self._calls: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._served = threading.Event()
        self._exporter = Exporter(Wall(StderrNotes()).attempt)
        self._last: _Held | None = None
        self._ending, self._count, self._said = False, 0, set[str]()

    def start(self) -> None:
        """Start the thread; what ends an object must not."""
        if self._thread is None:
            thread = own_thread(self._serve, "dynprof-unclaimed")
            with contextlib.suppress(RuntimeError):  # the interpreter is ending
                thread.start()
                self._thread = thread

    def put(self, held: _Held) -> None:
        """Have a window saved."""
        self._waiting.append(held)
        self._calls.put(True)

    def finish(self) -> None:
        """Have all saved that is left, and wait for it, not for long."""
        self._ending = True
        self._calls.put(False)
        if self._thread is None:
            self._serve()
            return
        why = "the process was interrupted"
        try:
            self._served.wait(EXIT_WAIT_S)
            why = "saving it took too long"
        except KeyboardInterrupt:  # whoever sends it wants the process to end
            pass
        finally:
            if not self._served.is_set():
                self._exporter.abandon(why)
                say(f"the trace of a profile is lost: {why}")

    def _serve(self) -> None:
        while self._calls.get():
            try:
                held = self._waiting.popleft()
            except IndexError:  # a newer one took its place
                self._say_once("traces that nobody asked for came faster than they could be saved")
                continue
            self._take(held)
            del held  # it holds the events of a whole window
        if self._last:
            self._save(self._last)
        self._served.set()

    def _take(self, held: _Held) -> None:
        """Save a window; one that would keep the training waiting at the end of the process."""
        recording = held.window.recording
        while not (self._ending or recording.saves_beside) and is_being_tested():
            time.sleep(0.05)
        if self._ending or recording.saves_beside:
            self._save(held)
            return
        if self._last:
            self._say_once("of several traces that nobody asked for the last alone is saved")
        self._last = held

    def _save(self, held: _Held) -> None:
        if self._count == MOST:
            self._say_once(f"of the traces that nobody asked for the first {MOST} alone are saved")
            return
        self._count += 1
        doing = f"{held.why}; it is lost, for saving it in {held.folder}"
        Wall(StderrNotes()).attempt(doing, lambda: self._to(held))

    def _to(self, held: _Held) -> None:
        folder, why = usable_folder(held.folder, held.instead)
        if why:
            say(why)
        tidy(folder)
        if held.window.is_private:  # its handler could not put it where it wanted it
            trace = held.window.write(folder / trace_name(worker_here(), held.window.suffix))
        else:
            least = Limits().min_free_disk_mb
            trace = save_now(
                held.window, folder, worker_here(), self._exporter, least_free_mb=least
            )
        say(f"{held.why}; it was saved as {trace} ({HOW_ELSE})")

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(f"{text} ({HOW_ELSE})")


_SAVER = _Saver()
_known: weakref.WeakSet[Unclaimed] = weakref.WeakSet()
"""Those that may have a window when the process ends."""


def _all_known() -> list[Unclaimed]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has just closed its first window
            return list(_known)


def _end_all() -> None:
    for unclaimed in _all_known():
        unclaimed.let_go()
    _SAVER.finish()


AFTERWARDS.append(_end_all)
forget_in_child(_SAVER.forget)

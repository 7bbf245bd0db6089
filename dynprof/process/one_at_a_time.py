"""What one thread at a time may do, and no signal handler amid that.

Who is inside is known by the frame that went in, and is inside for as long as its thread runs that:
what a signal handler raises between any two lines, also on the way out, leaves nothing locked.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import threading
from typing import TYPE_CHECKING, Any

from dynprof.clock import time
from dynprof.process.garbage_collector import no_collection

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_LOOK_AGAIN_S = 0.001
_LOOKS = 4
_call = operator.methodcaller("__call__")


class OneAtATime:
    """Lets one thread in at a time, and no thread twice."""

    def __init__(self) -> None:
        self._guard = threading.RLock()  # for ``with`` alone, which nothing parts from its lock
        self._inside: tuple[int, FrameType] | None = None

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is inside."""
        inside = self._inside
        return inside is not None and inside[0] == threading.get_ident() and _runs(*inside)

    def enter(self, frame: FrameType, patience_s: float = float("inf")) -> bool:
        """Wait for other threads; return whether this one is inside, and was not before.

        Args:
            frame: That of the calling thread which will leave.
            patience_s: For so many seconds at most.
        """
        end_s = time.monotonic() + patience_s
        while not self._came_in(frame):
            if self.is_mine or time.monotonic() >= end_s:
                return False
            time.sleep(_LOOK_AGAIN_S)
        return True

    def leave(self, frame: FrameType) -> None:
        """Let others in, if this is the frame that is inside."""
        inside = self._inside
        if inside and inside[1] is frame:
            self._inside = None

    def take(self) -> _Stay:
        """Be inside within a ``with``, which is given whether that is so."""
        return _Stay(self)

    def _came_in(self, frame: FrameType) -> bool:
        with self._guard:
            inside = self._inside  # once: who is inside may leave meanwhile
            if inside is None or not _runs(*inside):
                inside = self._inside = threading.get_ident(), frame
            return inside[1] is frame


class _Stay:
    def __init__(self, place: OneAtATime) -> None:
        self._place = place
        self._frame: FrameType | None = None

    def __enter__(self) -> bool:
        self._frame = sys._getframe(1)
        return self._place.enter(self._frame)

    def __exit__(self, *_: object) -> None:
        if self._frame:
            self._place.leave(self._frame)


def _runs(thread: int, frame: FrameType) -> bool:
    """Return whether a thread is in a frame, or in what that has called.

    Before Python 3.12 a thread that leaves a generator, just as it is looked at, seems to be in
    nothing else: seen in one look of 2,000 at most. Hardly ever is the next look interrupted, too.
    """
    return any(_is_seen(thread, frame) for _ in range(_LOOKS))


def _is_seen(thread: int, frame: FrameType) -> bool:
    with no_collection():
        found = undisturbed(sys._current_frames).get(thread)
        while found is not None and found is not frame:
            found = undisturbed(functools.partial(getattr, found, "f_back"))
        return found is not None


def undisturbed(look: Callable[[], Any]) -> Any:
    """Look at frames of threads, by a function of C.

    Up to Python 3.11 garbage may be collected amid that, and what is called back then is Python,
    which lets other threads run. They need a lock that is held meanwhile to begin and to end, and
    all wait for ever; or they leave the frame that is just looked at. So none may put collecting on
    between the two calls either: C alone makes them.
    """
    _, found = map(_call, (gc.disable, look))
    return found

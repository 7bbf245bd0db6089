"""Recordings of windows that were given up on another thread than the one they are bound to."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.backends import Recording
    from dynprof.wall import Wall


class Stranded:
    """Keeps them until their thread comes by, which alone may end them, or has ended itself.

    Args:
        wall: Keeps their failures from the training loop.
    """

    def __init__(self, wall: Wall) -> None:
        self._wall = wall
        self._recordings: list[tuple[threading.Thread, Recording]] = []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._recordings)

    def let_go(self, recording: Recording, thread: threading.Thread) -> None:
        """End a recording that is bound to a thread, now or later."""
        self._wall.attempt("discarding what records beside it", recording.companions.discard)
        self._recordings.append((thread, recording))
        self.look()

    def look(self) -> None:
        """End those that the calling thread may."""
        waiting, self._recordings = self._recordings, []
        for thread, recording in waiting:
            mine = not recording.bound_to_thread or thread is threading.current_thread()
            if mine:
                self._wall.attempt("discarding the recording", recording.discard)
            elif not thread.is_alive():
                self._wall.attempt("letting go of the recording", recording.orphan)
            else:
                self._recordings.append((thread, recording))

"""Recordings of windows that were given up where their profiler could not be ended."""

from __future__ import annotations

import atexit
from typing import TYPE_CHECKING

from dynprof.process.graph_captures import GRAPH_CAPTURES

if TYPE_CHECKING:
    from dynprof.backends import Recording
    from dynprof.clock import Clock
    from dynprof.wall import Wall
    from dynprof.windows.open_window import OpenWindow

WAIT_S = 30.0
"""For so long the next window waits for the thread of one that was given up."""


class UnendedRecordings:
    """Keeps them until a thread comes by that may end them, or theirs has ended itself.

    Args:
        wall: Keeps their failures from the training loop.
        clock: Tells the time.
    """

    def __init__(self, wall: Wall, clock: Clock) -> None:
        self._wall, self._clock, self._since_s = wall, clock, 0.0
        self._kept: list[tuple[OpenWindow, Recording]] = []

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._kept)

    @property
    def are_waited_for(self) -> bool:
        """Whether another window had better wait for them; not for ever."""
        return bool(self._kept) and self._clock.now_s() - self._since_s < WAIT_S

    def discard(self, window: OpenWindow) -> None:
        """End the recording of a window, now or later."""
        if recording := window.window.release():
            beside = recording.companions
            self._wall.attempt("discarding what records beside it", beside.discard)
            self._kept.append((window, recording))
            self._since_s = self._clock.now_s()
            self.look()
        if self._kept:
            atexit.register(self._end_with_process)

    def _end_with_process(self) -> None:
        GRAPH_CAPTURES.process_ends()
        self.look()

    def look(self) -> None:
        """End those that the calling thread may."""
        waiting, self._kept = self._kept, []
        for window, recording in waiting:
            if window.may_end(recording) and not recording.blocked_by():
                self._wall.attempt("discarding the recording", recording.discard)
                if recording.blocked_by():  # it could not be ended
                    self._kept.append((window, recording))
            elif recording.bound_to_thread and not window.thread.is_alive():
                self._wall.attempt("letting go of the recording", recording.abandon)
            else:
                self._kept.append((window, recording))

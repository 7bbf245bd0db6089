"""Tells the log that a step takes too long, where the main thread is, and when it has ended."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.journal.status import HEARTBEAT_S, patience_s

if TYPE_CHECKING:
    from types import FrameType

    from dynprof.clock import Clock
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.windows.cost_account import CostAccount

LONG_S = 30.0
"""A step that takes longer is explained in the status, though it be the first, or none unusual."""
MOST = 1000
"""Frames that are looked through; Python's own limit is as much."""
_NOT_THE_SCRIPT = ("<frozen", f"{Path(os.__file__).parent}/", f"{Path(__file__).parents[1]}/")
_LIBRARIES = ("/site-packages/", "/dist-packages/")


class Standstill:
    """Looks at the step counter once a second, and warns once for each step that takes too long.

    Args:
        root: The directory that is watched.
        inbox: Counts the steps.
        costs: Knows how long they take.
        journal: The log.
        clock: Tells the time.
    """

    def __init__(
        self, root: Path, inbox: Inbox, costs: CostAccount, journal: Journal, clock: Clock
    ) -> None:
        self._root, self._inbox, self._costs = root, inbox, costs
        self._journal, self._clock = journal, clock
        self._step, self._moved_s = inbox.step, clock.now_s()
        self._looked_s = self._moved_s
        self._patience_s = patience_s(None, None)
        self._told = False

    def look(self) -> None:
        """Warn where the step takes longer than the status allows, and where that has ended.

        What keeps all threads of the process, and so this one, is told afterwards.
        """
        now_s, step = self._clock.now_s(), self._inbox.step
        if (gap_s := now_s - self._looked_s) >= 3 * HEARTBEAT_S:
            self._journal.warning(
                f"nothing was written for {gap_s:,.0f} s: the process was stopped, a call kept "
                "Python's lock, or the disk did not answer"
            )
        self._looked_s = now_s
        still_s, before_s = now_s - self._moved_s, self._patience_s
        self._patience_s = patience_s(self._costs.longest_s(), self._costs.step_ms())
        if step != self._step:
            if self._told or still_s > before_s:
                self._journal.warning(f"moves again: step {self._step} took {still_s:,.0f} s")
            if self._journal.remembered.get("stands_in"):
                self._journal.remember(stands_in="")
            self._step, self._moved_s, self._told = step, now_s, False
        elif still_s > min(LONG_S, self._patience_s):
            where = where_main_thread_is()
            self._journal.remember(stands_in=where)
            if still_s > self._patience_s and not self._told:
                self._told = True
                self._warn(still_s, where or "no Python function")

    def _warn(self, still_s: float, where: str) -> None:
        self._journal.warning(
            f"stuck: step {self._step} has taken {still_s:,.0f} s, more than the "
            f"{self._patience_s:,.0f} s that a step may take here; the main thread is in {where}; "
            f"compare the ranks: dynprof status {self._root}, dynprof log {self._root}"
        )


def where_main_thread_is() -> str:
    """Return where it is: the innermost function, and the line of the script that led there.

    Returns:
        As ``accept (socket.py:294), called at /data/train.py:12 in load``; empty if it has ended.
    """
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    if frame is None:
        return ""
    own = _first_of_script(frame)
    if own is frame:
        return _of_script(frame)
    code = frame.f_code
    inner = f"{code.co_name} ({Path(code.co_filename).name}:{frame.f_lineno})"
    return f"{inner}, called at {_of_script(own)}" if own else inner


def _of_script(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def _first_of_script(frame: FrameType) -> FrameType | None:
    """Return the innermost frame that is not of a library."""
    looked: FrameType | None = frame
    for _ in range(MOST):
        if looked is None or not _is_of_library(looked.f_code.co_filename):
            break
        looked = looked.f_back
    return looked


def _is_of_library(path: str) -> bool:
    return path.startswith(_NOT_THE_SCRIPT) or any(name in path for name in _LIBRARIES)

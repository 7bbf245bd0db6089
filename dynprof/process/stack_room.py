"""Whether the stack has room for what dynprof does within ``step()``."""

from __future__ import annotations

import sys

from dynprof.process.interruptions import FULL, came_from_a_signal

FRAMES = 100
"""Windows of every kind could be opened and closed in 40, the first ones too (Python 3.11)."""
NO_ROOM = f"fewer than {FRAMES} frames were left of Python's recursion limit, or no memory"


def has_room() -> bool:
    """Return whether the calling thread's stack may grow by :data:`FRAMES` frames.

    A RecursionError amid a window that opens would cost more than the window: what traces calls
    might stay on. As a rule the frames need only be counted; up to Python 3.11 calls in C are
    limited with them, hence the half.

    Raises:
        RecursionError: A signal handler of the script's raises it.
    """
    left, frame = (sys.getrecursionlimit() - FRAMES) // 2, sys._getframe()
    while left > 0 and frame.f_back:
        left, frame = left - 1, frame.f_back
    if left > 0:
        return True
    try:
        _grow(FRAMES)
    except RecursionError as error:
        try:
            is_the_scripts = came_from_a_signal(error)
        except FULL:
            is_the_scripts = False
        if is_the_scripts:
            raise
        return False
    return True


def _grow(frames: int) -> None:
    if frames:
        _grow(frames - 1)

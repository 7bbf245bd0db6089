"""Whether the stack has room for what dynprof does within ``step()``."""

from __future__ import annotations

import sys

FRAMES = 100
"""Windows of every kind could be opened and closed in 40, the first ones too (Python 3.11)."""
NO_ROOM = f"fewer than {FRAMES} frames were left of Python's recursion limit, or no memory"


def has_room() -> bool:
    """Return whether the calling thread's stack may grow by :data:`FRAMES` frames.

    A RecursionError amid a window that opens would cost more than the window: what traces calls
    might stay on. As a rule the frames need only be counted; up to Python 3.11 calls in C are
    limited with them, hence the half.
    """
    left, frame = (sys.getrecursionlimit() - FRAMES) // 2, sys._getframe()
    while left > 0 and frame.f_back:
        left, frame = left - 1, frame.f_back
    return left > 0 or _grows(FRAMES)


def _grows(frames: int) -> bool:
    try:
        return frames == 0 or _grows(frames - 1)
    except RecursionError:
        return False

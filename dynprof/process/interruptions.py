"""Exceptions of the script's that come up inside dynprof: those that its signal handlers raise."""

from __future__ import annotations

import inspect
import itertools
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def came_from_a_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised it, which Python runs between any two lines.

    The handler need not be installed any more; but it was called with the signal's number and the
    very frame that it interrupted.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(_is_handler(frame, before) for before, frame in itertools.pairwise(frames))


def _is_handler(frame: FrameType, interrupted: FrameType) -> bool:
    code = frame.f_code
    count = code.co_argcount + bool(code.co_flags & inspect.CO_VARARGS)
    given: list[object] = []
    for name in code.co_varnames[:count]:
        value = frame.f_locals.get(name)
        given += value if isinstance(value, tuple) else [value]
    return len(given) > 1 and given[-1] is interrupted and isinstance(given[-2], int)

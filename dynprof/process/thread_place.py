"""Where another thread of this process is: the function and line that it runs now."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

from dynprof.process.garbage_collector import no_collection
from dynprof.process.one_at_a_time import undisturbed

if TYPE_CHECKING:
    from types import FrameType

_LIBRARY = os.path.dirname(os.__file__)  # noqa: PTH120 - a text to compare with


def place_of(thread: int) -> str:
    """Return the function that a thread runs, and the one of the script that has led there.

    Args:
        thread: Its ``threading.get_ident()``.

    Returns:
        ``wait (/.../threading.py:324), called from train (/.../train.py:12)``; empty where the
        thread runs no Python.
    """
    with no_collection():
        frame = innermost = undisturbed(sys._current_frames).get(thread)
        while frame is not None and _is_of_a_library(frame):
            frame = undisturbed(functools.partial(getattr, frame, "f_back"))
        if innermost is None:
            return ""
        called = f", called from {_named(frame)}" if frame not in (None, innermost) else ""
        return f"{_named(innermost)}{called}"


def _is_of_a_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith((_LIBRARY, "<frozen")) or "/site-packages/" in name


def _named(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_name} ({code.co_filename}:{frame.f_lineno})"

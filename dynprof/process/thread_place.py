"""Where another thread of this process is: the function and line that it runs now."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_LIBRARIES = (f"{Path(os.__file__).parent}/", f"{Path(__file__).parents[1]}/", "<frozen")


def place_of(thread: int) -> str:
    """Return the function that a thread runs, and the one of the script that has led there.

    Args:
        thread: Its ``threading.get_ident()``.

    Returns:
        ``wait (threading.py:324), called at /data/train.py:12 in load``, or
        ``/data/train.py:12 in load``; empty where the thread runs no Python.
    """
    frame = innermost = sys._current_frames().get(thread)
    while frame is not None and _is_of_a_library(frame):
        frame = frame.f_back
    if innermost is None:
        return ""
    if frame is innermost:
        return _line(frame)
    code = innermost.f_code
    name = f"{code.co_name} ({Path(code.co_filename).name}:{innermost.f_lineno})"
    return f"{name}, called at {_line(frame)}" if frame else name


def _is_of_a_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    packages = "/site-packages/" in name or "/dist-packages/" in name
    return packages or name.startswith(_LIBRARIES)


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"

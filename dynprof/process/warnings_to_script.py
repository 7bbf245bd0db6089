"""Warnings that name the script's own line, however deep in dynprof they are given."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_IMPORTS = "importlib."
"""Modules whose frames :func:`warnings.warn` does not count."""
_BETWEEN = ("dynprof.", "contextlib", _IMPORTS)
"""Modules between the script and the warning."""


def warn_script(text: str) -> None:
    """Warn whoever called into dynprof."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back and _module(frame).startswith(_BETWEEN):
        frame = frame.f_back
        depth += not _module(frame).startswith(_IMPORTS)
    warnings.warn(text, stacklevel=depth)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))

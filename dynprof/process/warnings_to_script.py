"""Warnings that name the script's own line, however deep in dynprof they are given."""

from __future__ import annotations

import sys
import warnings

_BETWEEN = ("dynprof.", "contextlib")
"""Modules between the script and the warning."""


def warn_script(text: str) -> None:
    """Warn whoever called into dynprof."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, stacklevel=depth)

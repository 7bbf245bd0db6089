"""Modules that a process has imported as a whole."""

from __future__ import annotations

import sys
from typing import Any


def whole_module(name: str) -> Any:
    """Return a module; None where it was not imported, or another thread is importing it.

    To import a part of a package in between can leave the script with half-made modules.
    """
    module = sys.modules.get(name)
    is_half = getattr(getattr(module, "__spec__", None), "_initializing", False)
    return None if is_half else module

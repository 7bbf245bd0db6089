"""Imports of a vendor's modules, answered by dynprof's where the vendor's are not installed."""

from __future__ import annotations

import importlib.util
import sys


def answer_import(name: str, module: str) -> None:
    """Let an import find a module of dynprof's in this process, unless there is a real one.

    Args:
        name: What the script imports.
        module: The full name of dynprof's, which is loaded.
    """
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        sys.modules[name] = sys.modules[module]

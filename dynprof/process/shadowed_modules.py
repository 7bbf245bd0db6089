"""Modules of Python's own library that a job has modules of its own in the place of.

A script's folder stands before Python's library on the path, so ``import secrets`` is the job's
``secrets.py``, unless somebody has loaded Python's before. What dynprof loads for itself must not
decide that.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def forget_shadowed(before: Collection[str], folders: Iterable[str]) -> None:
    """Let the job load its own modules where dynprof has loaded Python's of the same names.

    Whoever has those already keeps them.

    Args:
        before: The modules that were there before dynprof was loaded.
        folders: The path that the job's imports follow; what stands before Python's library counts.
    """
    names = {name for name in list(sys.modules) if "." not in name} & sys.stdlib_module_names
    loaded = names.difference(before, sys.builtin_module_names)
    library = Path(os.__file__).parent
    for folder in folders:
        if Path(folder) == library:
            return
        for name in [one for one in loaded if _has(folder, one)]:
            loaded.discard(name)
            for full in [one for one in list(sys.modules) if one.partition(".")[0] == name]:
                if full not in before:
                    del sys.modules[full]


def _has(folder: str, name: str) -> bool:
    spec = PathFinder.find_spec(name, [folder])
    return spec is not None and spec.loader is not None  # a folder alone goes behind all others

"""The variables of the environment by which a process is asked to watch a directory."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from dynprof.steps.step_option import VARIABLE as STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = "DYNPROF_CONFIG"
VENDORS_CONFIG = "PROF_CONFIG_PATH"
"""The name that torch_npu has for it."""
WATCHED = "DYNPROF_WATCHED"
"""Set by a process that watches, for its children: its id, and which rank it is."""

__all__ = [
    "CONFIG", "STEPS", "VENDORS_CONFIG", "WATCHED", "effective_variable", "requested_directory",
]  # fmt: skip


def effective_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable whose directory is to be watched, if any is."""
    return CONFIG if environ.get(CONFIG) else VENDORS_CONFIG


def requested_directory(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the directory to watch, empty for none, and why the vendor's variable does not count.

    The reason is empty where the variable counts, or is not set, or names the same directory.
    """
    own, vendors = environ.get(CONFIG, ""), environ.get(VENDORS_CONFIG, "")
    if own:
        differs = vendors not in ("", own)
        text = f"{VENDORS_CONFIG}={vendors} is not watched; {CONFIG} goes first"
        return own, text if differs else ""
    if vendors and importlib.util.find_spec("torch_npu"):
        text = f"{VENDORS_CONFIG}={vendors} is not watched; torch_npu is installed and reads it"
        return "", text
    return vendors, ""

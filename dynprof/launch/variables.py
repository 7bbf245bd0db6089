"""The environment variables that make a process watch a directory."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from dynprof.steps.step_option import VARIABLE as STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG = "DYNPROF_CONFIG"
VENDORS_CONFIG = "PROF_CONFIG_PATH"
"""The same variable of torch_npu."""
WATCHED = "DYNPROF_WATCHED"
"""Set by a watching process for its children: its PID and its rank."""

__all__ = [
    "CONFIG", "STEPS", "VENDORS_CONFIG", "WATCHED", "effective_variable", "requested_directory",
]  # fmt: skip


def effective_variable(environ: Mapping[str, str]) -> str:
    """Return the name of the variable whose directory is watched, if any is set."""
    return CONFIG if environ.get(CONFIG) else VENDORS_CONFIG


def requested_directory(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the directory to watch, empty for none, and why the vendor's variable is ignored.

    The reason is empty if the variable is used, is not set, or names the same directory.
    """
    own, vendors = environ.get(CONFIG, ""), environ.get(VENDORS_CONFIG, "")
    if own:
        differs = vendors not in ("", own)
        text = f"{VENDORS_CONFIG}={vendors} is not watched; {CONFIG} takes precedence"
        return own, text if differs else ""
    if vendors and importlib.util.find_spec("torch_npu"):
        text = f"{VENDORS_CONFIG}={vendors} is not watched; torch_npu is installed and reads it"
        return "", text
    return vendors, ""

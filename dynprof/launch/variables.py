"""The variables of the environment by which a process is asked to watch a directory."""

from __future__ import annotations

from dynprof.steps.wish import VARIABLE as STEPS

CONFIG = "DYNPROF_CONFIG"
VENDORS_CONFIG = "PROF_CONFIG_PATH"
"""The name that torch_npu has for it."""
WATCHED = "DYNPROF_WATCHED"
"""Set by a process that watches, for its children: its id, and which rank it is."""

__all__ = ["CONFIG", "STEPS", "VENDORS_CONFIG", "WATCHED"]

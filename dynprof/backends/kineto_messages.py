"""Keeps out of the job's stderr what Kineto writes there of every window."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.requests.capabilities import Capabilities

VARIABLE = "KINETO_LOG_LEVEL"
NOTHING = "6"
"""Kineto's levels end with 5, of the lines that torch 2.13 writes when a profiler begins and ends;
4 are errors."""


def keep_kineto_quiet(capable: Capabilities) -> None:
    """Set Kineto's level, unless the environment has one; it reads that before its first profiler.

    With a device nothing is set: there Kineto's errors say why the driver gives no kernels, and
    they would be gone with the rest.

    Args:
        capable: What will record here.
    """
    if capable.backend == "torch" and capable.activities == ("CPU",):
        os.environ.setdefault(VARIABLE, NOTHING)

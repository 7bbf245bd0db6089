"""Keeps out of the job's stderr what Kineto writes there of every window."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.requests.capabilities import Capabilities

VARIABLE = "KINETO_LOG_LEVEL"
NOTHING = "6"
"""Kineto's levels end with 5, of the lines that torch 2.13 writes when a profiler begins and ends;
4 are errors."""


_DEVICE_FILES = ("nvidia[0-9c]*", "kfd", "dri/render*", "davinci*", "dxg", "accel*")
"""Below ``/dev``, where a driver for some device is loaded."""


def keep_kineto_quiet_without_devices() -> None:
    """Do so before a script has imported torch, where this machine has no device at all."""
    if not any(found for name in _DEVICE_FILES for found in Path("/dev").glob(name)):
        os.environ.setdefault(VARIABLE, NOTHING)


def keep_kineto_quiet(capable: Capabilities) -> None:
    """Set Kineto's level, unless the environment has one; it reads that before its first profiler.

    With a device nothing is set: there Kineto's errors say why the driver gives no kernels, and
    they would be gone with the rest.

    Args:
        capable: What will record here.
    """
    if capable.backend == "torch" and capable.activities == ("CPU",):
        os.environ.setdefault(VARIABLE, NOTHING)

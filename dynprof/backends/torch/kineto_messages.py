"""Keeps Kineto's lines about every window out of the job's stderr."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.requests.capabilities import Capabilities

VARIABLE = "KINETO_LOG_LEVEL"
NOTHING = "6"
"""A log level above Kineto's highest, 5, at which torch 2.13 writes lines when a profiler begins
and ends; errors have level 4."""
_DEVICE_FILES = ("nvidia[0-9c]*", "kfd", "dri/render*", "davinci*", "dxg", "accel*")
"""Files below ``/dev`` that exist where a device's driver is loaded."""


def keep_kineto_quiet_without_devices() -> None:
    """Set Kineto's level before a script imports torch, where this machine has no device."""
    if not any(found for name in _DEVICE_FILES for found in Path("/dev").glob(name)):
        os.environ.setdefault(VARIABLE, NOTHING)


def keep_kineto_quiet(capable: Capabilities) -> None:
    """Set Kineto's level, unless the environment has one; Kineto reads it at its first profiler.

    With a device nothing is set: Kineto's errors, which say why the driver gives no kernels, would
    be hidden too.

    Args:
        capable: The capabilities of the backend that will record here.
    """
    if capable.backend == "torch" and capable.activities == ("CPU",):
        os.environ.setdefault(VARIABLE, NOTHING)

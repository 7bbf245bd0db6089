"""The speed of this machine, and the timeouts of tests that follow from it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

SLOWNESS = "DYNPROF_TEST_SLOWNESS"
"""The variable that passes the measured slowness to child processes."""
REFERENCE_S = 0.15
"""Seconds that the sample of work takes on a quiet machine with two cores."""
_SAMPLE = "import asyncio, dataclasses, json; sum(i * i for i in range(1_000_000))"
_PATIENCE_S = 100.0


def slowness() -> float:
    """Return the factor by which this machine is slower than a quiet one, at least 1."""
    if SLOWNESS not in os.environ:
        os.environ[SLOWNESS] = str(max(1.0, _sample_s() / REFERENCE_S))
    return float(os.environ[SLOWNESS])


def patience_s() -> float:
    """Return the timeout for work that takes this many seconds on a quiet machine."""
    return _PATIENCE_S * slowness()


def _sample_s() -> float:
    """Start an interpreter and compute a little, as jobs do; return the slower of two runs."""
    times_s = []
    for _ in range(2):
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-c", _SAMPLE], check=True)
        times_s.append(time.monotonic() - began_s)
    return max(times_s)

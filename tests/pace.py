"""How slow this machine is now, and how long tests therefore wait before they give up."""

from __future__ import annotations

import os
import subprocess
import sys
import time

SLOWNESS = "DYNPROF_TEST_SLOWNESS"
"""The variable that hands what one process measured to those that it starts."""
REFERENCE_S = 0.15
"""What the sample of work takes on a quiet machine of two cores."""
_SAMPLE = "import asyncio, dataclasses, json; sum(i * i for i in range(1_000_000))"
_PATIENCE_S = 100.0


def slowness() -> float:
    """Return how many times as long as on a quiet machine things take, at least 1."""
    if SLOWNESS not in os.environ:
        os.environ[SLOWNESS] = str(max(1.0, _sample_s() / REFERENCE_S))
    return float(os.environ[SLOWNESS])


def patience_s() -> float:
    """Return how long to wait for what takes seconds on a quiet machine."""
    return _PATIENCE_S * slowness()


def _sample_s() -> float:
    """Start an interpreter and compute a little, as jobs do; the slower of two tries counts."""
    times_s = []
    for _ in range(2):
        began_s = time.monotonic()
        subprocess.run([sys.executable, "-c", _SAMPLE], check=True)
        times_s.append(time.monotonic() - began_s)
    return max(times_s)

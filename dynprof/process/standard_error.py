"""What dynprof says on the job's standard error, which may be gone, closed or full."""

from __future__ import annotations

import contextlib
import sys


def say(text: str) -> None:
    """Print a line for whoever watches the job; where nobody can be told, do nothing."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr:
            print(f"dynprof: {text}", file=sys.stderr, flush=True)

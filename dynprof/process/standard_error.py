"""What dynprof says on the job's standard error, which may be gone, closed, full or anything."""

from __future__ import annotations

import contextlib
import os
import sys


def say(text: str) -> None:
    """Print a line for whoever watches the job; where nobody can be told, do nothing."""
    with contextlib.suppress(Exception):  # the script may have put any object in its place
        _write(f"dynprof: {text}\n")


def _write(text: str) -> None:
    stream, real = sys.stderr, sys.__stderr__
    if real is not None and stream is real:  # not through its buffer, which is tried again at exit
        real.flush()
        os.write(real.fileno(), text.encode(real.encoding, "backslashreplace"))
    elif stream:
        print(text, end="", file=stream, flush=True)

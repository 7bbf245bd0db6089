"""``python -m dynprof.analysis TRACE``: what the training process starts beside itself."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dynprof.analysis.captures import analyse_trace, draw_memory
from dynprof.errors import DynprofError


def main() -> None:
    """Analyse a trace at the lowest priority.

    Raises:
        SystemExit: With the reason why it could not be done.
    """
    parser = argparse.ArgumentParser(prog="python -m dynprof.analysis")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--only", choices=["memory"], help="leave the rest out")
    parser.add_argument("--nice", type=int, default=19, help="how far to give way to others")
    asked = parser.parse_args()
    os.nice(asked.nice)
    if asked.trace.is_symlink():  # what was saved is none; somebody has put it there since
        sys.exit(f"{asked.trace} is a symbolic link, which is not followed")
    try:
        for made in draw_memory(asked.trace) if asked.only else analyse_trace(asked.trace):
            print(made)
    except (DynprofError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

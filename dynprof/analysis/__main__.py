"""``python -m dynprof.analysis TRACE``: what the training process starts beside itself."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dynprof.analysis.captures import analyse_trace
from dynprof.errors import DynprofError


def main() -> None:
    """Analyse a trace at the lowest priority.

    Raises:
        SystemExit: With the reason why it could not be done.
    """
    parser = argparse.ArgumentParser(prog="python -m dynprof.analysis")
    parser.add_argument("trace", type=Path)
    parser.add_argument("--only", choices=["memory"], help="leave the rest out")
    asked = parser.parse_args()
    os.nice(19)
    try:
        for made in analyse_trace(asked.trace, only=asked.only):
            print(made)
    except (DynprofError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

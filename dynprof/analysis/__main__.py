"""``python -m dynprof.analysis TRACE...``: what the training process starts beside itself."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from dynprof.analysis.runs.one_trace import analyse_trace, draw_memory
from dynprof.analysis.runs.remote_files import located, place_of
from dynprof.errors import DynprofError, describe
from dynprof.process.file_size_limit import in_words, limit_file_size


def main() -> None:
    """Analyse traces at the lowest priority.

    Raises:
        SystemExit: With the reason why it could not be done.
    """
    parser = argparse.ArgumentParser(prog="python -m dynprof.analysis")
    parser.add_argument("trace", nargs="+", help="one after the other; a path or a URL")
    parser.add_argument("--only", choices=["memory"], help="leave the rest out")
    parser.add_argument("--nice", type=int, default=19, help="how far to give way to others")
    asked = parser.parse_args()
    os.nice(asked.nice)
    limit_file_size(_workplace(asked.trace[0]))
    failures = [reason for trace in asked.trace if (reason := _analyse(trace, asked.only))]
    if failures:
        sys.exit("\n".join(failures))
    print("analysed", file=sys.stderr)  # its exit code may get lost


def _analyse(named: str, only: str | None) -> str:
    """Analyse one trace; return why it could not be done."""
    if Path(named).is_symlink():  # what was saved is none; somebody has put it there since
        return f"{named} is a symbolic link, which is not followed"
    try:
        there = located(named)
        with place_of(there.parent) as place:
            trace = place.fetch_capture(there)
            for made in draw_memory(trace) if only else analyse_trace(trace):
                print(place.deliver(made))
    except (DynprofError, OSError) as error:
        return in_words(error, describe(error))
    return ""


def _workplace(named: str) -> Path:
    """Return the folder in which a trace is analysed."""
    return Path(tempfile.gettempdir()) if "://" in named else Path(named).parent


if __name__ == "__main__":
    main()

"""``python -m dynprof``, and ``dynprof`` itself: the command."""

from __future__ import annotations

import errno
import os
import sys

from dynprof.runtime.error_boundary import ended_by_interrupt

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a full or broken disk; for standard output they name no file."""


def main() -> None:
    """Run the command; Ctrl-C before it has been loaded ends the process without a traceback."""
    with ended_by_interrupt():
        from dynprof.cli.app import app

    try:
        app(prog_name="dynprof")
    except OSError as error:
        if error.errno == errno.EPIPE or (error.filename is None and error.errno not in _FULL):
            raise
        if error.filename is None:
            # The flush at exit must not fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        name = error.filename or "the output cannot be written"
        print(f"{name!s}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

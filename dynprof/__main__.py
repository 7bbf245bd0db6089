"""``python -m dynprof``, and ``dynprof`` itself: the command."""

from __future__ import annotations

import errno
import sys

from dynprof.runtime.error_boundary import ended_by_interrupt


def main() -> None:
    """Run the command; Ctrl-C before it has been loaded ends the process without a traceback."""
    with ended_by_interrupt():
        from dynprof.cli.app import app

    try:
        app(prog_name="dynprof")
    except OSError as error:
        if error.errno == errno.EPIPE or error.filename is None:
            raise
        print(f"{error.filename!s}: {error.strerror}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()

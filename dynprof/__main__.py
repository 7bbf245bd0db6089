"""``python -m dynprof``, and ``dynprof`` itself: the command."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command; Ctrl-C before it has been loaded ends the process without a traceback."""
    interrupts = signal.getsignal(signal.SIGINT)
    if interrupts is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from dynprof.cli import app

    signal.signal(signal.SIGINT, interrupts)
    app(prog_name="dynprof")


if __name__ == "__main__":
    main()

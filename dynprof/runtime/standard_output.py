"""The standard output of a command, in whatever encoding the terminal has."""

from __future__ import annotations

import io
import sys


def replace_unencodable() -> None:
    """Print ``?`` for a character that the encoding of the terminal lacks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")

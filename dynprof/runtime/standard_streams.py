"""Messages on the standard streams: warnings at the script's own line, and printed lines."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_IMPORTS = "importlib."
"""Prefix of modules whose frames :func:`warnings.warn` does not count."""
_BETWEEN = ("dynprof.", "contextlib", _IMPORTS)
"""Prefixes of modules between the script and the warning."""


def warn_script(text: str) -> None:
    """Warn at the line that called into dynprof."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back and _module(frame).startswith(_BETWEEN):
        frame = frame.f_back
        depth += not _module(frame).startswith(_IMPORTS)
    warnings.warn(text, stacklevel=depth)


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def say(text: str) -> None:
    """Print a line to standard error; do nothing if that fails."""
    with contextlib.suppress(Exception):  # the script may have replaced the stream by any object
        _write(f"dynprof: {text}\n")


def _write(text: str) -> None:
    stream, real = sys.stderr, sys.__stderr__
    if real is not None and stream is real:  # not through its buffer, which exit flushes again
        real.flush()
        os.write(real.fileno(), text.encode(real.encoding, "backslashreplace"))
    elif stream:
        print(text, end="", file=stream, flush=True)


def replace_unencodable() -> None:
    """Print ``?`` for a character that the encoding of the terminal lacks, instead of raising.

    In the C locale the bytes of a file's name still pass unchanged.
    """
    codecs.register_error(_REPLACING, _bytes_or_question_mark)
    handlers = {"strict": "replace", "surrogateescape": _REPLACING}
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in handlers:
            stream.reconfigure(errors=handlers[stream.errors])


_REPLACING = "dynprof-replace"


def _bytes_or_question_mark(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("replace")(error)

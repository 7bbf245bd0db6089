"""Names that a profiler wrote into a trace without escaping them, so that the trace is no JSON.

Kineto escapes nothing. That of torch 2.13 keeps quotes in names, that of 2.15 makes them ``'``. It
removes line breaks from names, and a line ends with a name or with numbers behind it: so the line
tells where the name ends, whatever is in it.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

import msgspec

_LINE = re.compile(
    rb'^([ \t]*(?:"(?:ph|cat|s)": "[^"\n]*", )*"[^"\n]+": ")'
    rb'([^\n]*)("(?:, "[pt]id": -?\d+)*,?[ \t]*)$',
    re.MULTILINE,
)
"""A line that ends with a text; older versions of torch write several members on one."""
_NAME = re.compile(rb'(",\n    "name": ")([^\n]*)(",)(?=\n)')
"""A name that has a line of its own."""
_ODD = re.compile(rb'",\n    "name": "[^"\n]*"(?!,\n)')
"""One with quotes in it. Looked for in all that is saved: 2 GB/s."""
_UNKNOWN = b'"name": "unknown"'
"""What Kineto writes for a name in which a byte is no printable ASCII."""
_SPACED = re.compile(rb' {5,}(?=")| {3,}(?=[{}\]])')
"""Where Kineto broke a line, in a trace whose line breaks were made spaces."""
_CONTROL_TO_SPACE = bytes([*[32] * 32, *range(32, 256)])
"""VizTracer does not escape a line break in a function's name; outside names they mean nothing."""


class Repaired(NamedTuple):
    """A text whose names are escaped.

    Attributes:
        text: The text.
        names: How many names were not escaped.
    """

    text: bytes
    names: int


def is_json(text: bytes) -> bool:
    """Return whether a text is JSON without NaN and halves of surrogate pairs; 1.4 GB/s."""
    try:
        if not text.isascii():
            text.decode()
        msgspec.json.decode(text, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return False
    return True


def fault(text: bytes) -> int | None:
    """Return the first byte that is no JSON as Python writes it; None where all is.

    Holds the GIL for 15 ms for a text of 1 MiB that is not as :func:`is_json` wants it.
    """
    if is_json(text):
        return None
    try:
        text.decode()
        json.loads(text.decode("latin-1"))
    except UnicodeDecodeError as error:
        return error.start
    except json.JSONDecodeError as error:
        return error.pos
    return None


def unknown_names(text: bytes) -> int:
    """Return how many names torch has replaced."""
    return text.count(_UNKNOWN)


def has_odd_name(text: bytes) -> bool:
    """Return whether a name has quotes in it, also where that leaves the text JSON.

    ``a", "cat": "b`` does so, and is read as ``a``.
    """
    return _ODD.search(text) is not None


def repair(text: bytes, before: bytes = b"[", after: bytes = b"]") -> Repaired | None:
    """Escape the names in a part of a trace; return None where that does not make it JSON.

    Args:
        text: The part, which is no JSON as it is.
        before: What makes it JSON, together with ``after``.
        after: The same behind it.
    """
    escaped, names = escape(text)
    if names and is_json(b"".join((before, escaped, after))):
        return Repaired(escaped, names)
    on_one_line = text.translate(_CONTROL_TO_SPACE)
    if is_json(b"".join((before, on_one_line, after))):
        return Repaired(on_one_line, 0)
    return None


def escape(text: bytes) -> tuple[bytes, int]:
    """Escape the names in a part of a trace; return it, and how many were not escaped."""
    count = 0

    def escaped(line: re.Match[bytes]) -> bytes:
        nonlocal count
        begin, name, end = line.groups()
        if fault(b'"%b"' % name) is None:
            return line[0]
        if line.re is _LINE and fault(b"{%b}" % line[0].strip(b" \t,")) is None:
            return line[0]
        count += 1
        whole = json.dumps(name.decode(errors="replace"), ensure_ascii=False).encode()
        return b"".join((begin, whole[1:-1], end))

    lines = text if b"\n" in text else _SPACED.sub(b"\n", text)
    return _LINE.sub(escaped, _NAME.sub(escaped, lines)), count

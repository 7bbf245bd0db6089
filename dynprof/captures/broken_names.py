"""Names that a profiler wrote into a trace without escaping them, which makes it invalid JSON.

Kineto escapes nothing. Kineto of torch 2.13 keeps quotes in names; Kineto of torch 2.15 replaces
them by ``'``. It removes line breaks from names. A line ends with a name, or with numbers after
it. So the line shows where the name ends, whatever the name contains.
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
"""A line that ends with a text; older versions of torch write several members on one line."""
_NAME = re.compile(rb'(",\n    "name": ")([^\n]*)(",)(?=\n)')
"""A name on a line of its own."""
_ODD = re.compile(rb'",\n    "name": "[^"\n]*"(?!,\n)')
"""A name that contains quotes. The search runs over everything that is saved, at 2 GB/s."""
_UNKNOWN = b'"name": "unknown"'
"""What Kineto writes for a name that has a byte outside printable ASCII."""
_SPACED = re.compile(rb' {5,}(?=")| {3,}(?=[{}\]])')
"""Where Kineto broke a line, in a trace whose line breaks were replaced by spaces."""
_CONTROL_TO_SPACE = bytes([*[32] * 32, *range(32, 256)])
"""VizTracer does not escape a line break in a function's name. Outside names it has no meaning."""


class Repaired(NamedTuple):
    """A text whose names are escaped.

    Attributes:
        text: The text.
        names: How many names were not escaped.
    """

    text: bytes
    names: int


def is_json(text: bytes) -> bool:
    """Return whether a text is JSON without NaN and without lone surrogates; 1.4 GB/s."""
    try:
        if not text.isascii():
            text.decode()
        msgspec.json.decode(text, type=msgspec.Raw)
    except (UnicodeDecodeError, msgspec.DecodeError):
        return False
    return True


def fault(text: bytes) -> int | None:
    """Return the offset of the first byte that Python's parser rejects; None if it accepts all.

    Holds the GIL for 15 ms for a text of 1 MiB that :func:`is_json` rejects.
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
    """Return how many names torch has replaced by ``unknown``."""
    return text.count(_UNKNOWN)


def has_odd_name(text: bytes) -> bool:
    """Return whether a name contains quotes, even if the text is JSON.

    ``a", "cat": "b`` is an example: it is read as ``a``.
    """
    return _ODD.search(text) is not None


def repair(text: bytes, before: bytes = b"[", after: bytes = b"]") -> Repaired | None:
    """Escape the names in a part of a trace; return None if the result is still not JSON.

    Args:
        text: The part; it is not JSON.
        before: The text before it that makes the part JSON, together with ``after``.
        after: The text after it.
    """
    escaped, names = escape(text)
    if names and is_json(b"".join((before, escaped, after))):
        return Repaired(escaped, names)
    on_one_line = text.translate(_CONTROL_TO_SPACE)
    if is_json(b"".join((before, on_one_line, after))):
        return Repaired(on_one_line, 0)
    return None


def escape(text: bytes) -> tuple[bytes, int]:
    """Escape the names in a part of a trace; return it, and how many names needed escaping."""
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

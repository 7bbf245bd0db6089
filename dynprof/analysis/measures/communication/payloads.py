"""Payloads of communication as Kineto writes them: elements, their type, and the group."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from dynprof.analysis.reading.events import NONE

if TYPE_CHECKING:
    from dynprof.analysis.reading.events import Details
    from dynprof.analysis.reading.trace import Trace


class Dtype(NamedTuple):
    """A type of elements.

    Attributes:
        bytes: Bytes of one element; None if the type is unknown.
        vendors: The vendor's number for the type.
    """

    bytes: int | None
    vendors: int


NO_DTYPE = Dtype(None, 65534)
_DTYPES = {
    "Char": Dtype(1, 0), "Short": Dtype(2, 1), "Int": Dtype(4, 2), "Half": Dtype(2, 3),
    "Float": Dtype(4, 4), "Long": Dtype(8, 5), "UInt64": Dtype(8, 6), "Byte": Dtype(1, 7),
    "UInt16": Dtype(2, 8), "UInt32": Dtype(4, 9), "Double": Dtype(8, 10), "BFloat16": Dtype(2, 11),
    "Float8_e4m3fn": Dtype(1, 15), "Float8_e5m2": Dtype(1, 16), "Float8_e8m0fnu": Dtype(1, 17),
    "Bool": Dtype(1, 65534),
}  # fmt: skip
"""Types by torch's names."""
NO_GROUP = "N/A"


def dtype_of(details: Details) -> Dtype:
    """Return the type of a message's elements."""
    return _DTYPES.get(details.dtype, NO_DTYPE)


def size_of(details: Details) -> int | None:
    """Return the bytes of a rank's input; None if the trace does not tell."""
    each = dtype_of(details).bytes
    return None if each is None or details.elements_in == NONE else each * details.elements_in


def group_name(trace: Trace, span: int) -> str:
    """Return the name of the group that communicated; ``N/A`` if the trace has none."""
    name, members = trace.tables["group"][trace.spans["group"][span]]
    return _text(name) or _text(members) or NO_GROUP


def _text(written: bytes) -> str:
    """Return a JSON value as text; empty if it has no content."""
    try:
        found = json.loads(written) if written else None
        return str(found) if found else ""
    except (ValueError, RecursionError):
        return written.decode(errors="replace")

"""Marks that a script set through ``dynprof.mstx``: moments, and ranges of both kinds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import LABELS, MARKS, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.events import Details
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

MOMENT, NESTED, CROSSING = range(3)
"""Kinds of marks, with the vendor's numbers: ranges of one thread, and those that may cross."""
KINDS = ("marker", "push/pop", "start/end")
"""The vendor's names of these kinds."""


@dataclass(frozen=True)
class Marks:
    """The marks of a trace, in order of start.

    Attributes:
        span: Indices among the trace's spans.
        kind: Index of each in :data:`KINDS`.
        domain: The domain of each that the script set; empty if the trace names none.
        range_id: The number of each range that may cross others; -1 for the rest.
    """

    span: Numbers
    kind: Numbers
    domain: list[str]
    range_id: list[int | str]


def marks(trace: Trace) -> Marks:
    """Return the marks of a trace."""
    known = trace.tables["details"]
    domains = np.array([bool(details.domain) for details in known] or [False])
    kinds = np.array([_kind(details) for details in known] or [MOMENT])
    code = trace.spans["details"]
    of_mstx = trace.category(MARKS)
    span = np.flatnonzero(of_mstx | (trace.category(LABELS) & domains[code]))
    kind = np.where(of_mstx[span], kinds[code[span]], NESTED)
    details = [known[place] for place in code[span].tolist()]
    return Marks(
        span=span,
        kind=kind,
        domain=[_text(one.domain) for one in details],
        range_id=[one.range_id for one in details],
    )


def _kind(one: Details) -> int:
    if _text(one.kind) == KINDS[NESTED]:
        return NESTED
    return MOMENT if one.range_id == NONE else CROSSING


def _text(value: bytes) -> str:
    try:
        found = json.loads(value) if value else ""
        return found if isinstance(found, str) else str(found)
    except RecursionError:  # deeply nested lists
        return value.decode()

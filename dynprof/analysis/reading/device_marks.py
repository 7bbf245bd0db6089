"""What host and device did to set marks on streams, which is no operator's work.

Each such mark lies in a range of its own on the host: in it a label, an operator, a launch; what
that started on the device is a kernel under the mark's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.reading.categories import LABELS, LAUNCHES, ON_DEVICE, OPERATORS
from dynprof.analysis.reading.intervals import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.categories import Names
    from dynprof.analysis.reading.columns import Columns

    Chosen = NDArray[np.bool_]

LABEL = "dynprof: device mark"
"""What such a range is called; who records it lives in another house, and says the same."""


def of_device_marks(spans: Columns, tables: dict[str, list[Any]]) -> Chosen:
    """Return which spans did nothing but set a mark.

    Args:
        spans: Of a trace, in the order of their begin.
        tables: What their columns stand for.
    """
    found = np.zeros(len(spans["start"]), bool)
    if LABEL not in tables["name"]:
        return found
    outer = _of(spans, tables, LABELS) & (spans["name"] == tables["name"].index(LABEL))
    for thread in distinct(spans["thread"][outer]).tolist():
        here = spans["thread"] == thread
        found |= here & _within(spans, np.flatnonzero(outer & here))
    found &= _of(spans, tables, LABELS | OPERATORS | LAUNCHES)
    numbers = spans["correlation"][found & _of(spans, tables, LAUNCHES)]
    started = np.isin(spans["correlation"], numbers[numbers >= 0])
    return found | (started & _of(spans, tables, ON_DEVICE))


def _within(spans: Columns, outer: NDArray[np.int64]) -> Chosen:
    """Return which spans lie in one of some that follow one another."""
    start, end = spans["start"], spans["start"] + spans["length"]
    last = np.searchsorted(start[outer], start, side="right") - 1
    return (last >= 0) & (end <= end[outer][last])


def _of(spans: Columns, tables: dict[str, list[Any]], kinds: Names) -> Chosen:
    passed = np.array([name.lower() in kinds for name in tables["category"]], bool)
    return passed[spans["category"]]

"""Which span lies inside which, and what time is a span's own."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

ROOT = -1
"""The parent of a span that lies in no other."""
_NEVER = int(np.iinfo(np.int64).max)


def parents(start: Numbers, length: Numbers, thread: Numbers) -> Numbers:
    """Return the place of the innermost span that each one lies in, on its thread.

    A span that ends after the one it began in, by rounding or because ranges cross, counts as
    ending with it.

    Args:
        start: Begins, in ns, ascending; of spans that begin together the longer one first.
        length: Durations, in ns.
        thread: Numbers of the threads.
    """
    found = np.full(len(start), ROOT, np.int64)
    order = np.argsort(thread, kind="stable")
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    begins, ends = start[order].tolist(), (start + length)[order].tolist()
    places, bounds = order.tolist(), [0, *edges.tolist(), len(order)]
    for one, other in pairwise(bounds):
        nested = _nested(places[one:other], begins[one:other], ends[one:other])
        found[order[one:other]] = nested
    return found


def _nested(places: list[int], begins: list[int], ends: list[int]) -> list[int]:
    """Return the parents of the spans of one thread; two lists are the stack of what is open."""
    found: list[int] = []
    outer, limits = [ROOT], [_NEVER]
    for place, begin, end in zip(places, begins, ends, strict=True):
        while limits[-1] <= begin:
            limits.pop()
            outer.pop()
        found.append(outer[-1])
        outer.append(place)
        limits.append(end if end < limits[-1] else limits[-1])
    return found


def own_time(length: Numbers, parent: Numbers) -> Numbers:
    """Return what is left of each span's duration without its children's, in ns."""
    inside = parent != ROOT
    spent = np.bincount(parent[inside], weights=length[inside], minlength=len(length))
    return np.maximum(length - spent.astype(np.int64), 0)

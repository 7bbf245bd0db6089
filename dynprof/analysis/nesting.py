"""Which span lies inside which, and what time is a span's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

ROOT = -1
"""The parent of a span that lies in no other."""


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
    for number in np.unique(thread):
        mine = np.flatnonzero(thread == number)
        inner = _parents(start[mine], start[mine] + length[mine])
        inside = inner != ROOT
        found[mine[inside]] = mine[inner[inside]]
    return found


def _parents(start: Numbers, end: Numbers) -> Numbers:
    end = end.copy()
    while True:
        found = _innermost(start, end)
        outer = np.where(found == ROOT, np.iinfo(np.int64).max, end[found])
        if not (end > outer).any():
            return found
        end = np.minimum(end, outer)


def _innermost(start: Numbers, end: Numbers) -> Numbers:
    """Return each span's parent: the newest earlier one that is one level less deep."""
    ended = np.searchsorted(np.sort(end), start, side="right")
    depth = np.arange(len(start)) - ended + (end == start)
    found = np.full(len(start), ROOT, np.int64)
    above = np.flatnonzero(depth == 0)
    for level in range(1, int(depth.max(initial=0)) + 1):
        here = np.flatnonzero(depth == level)
        found[here] = above[np.searchsorted(above, here) - 1]
        above = here
    return found


def own_time(length: Numbers, parent: Numbers) -> Numbers:
    """Return what is left of each span's duration without its children's, in ns."""
    inside = parent != ROOT
    spent = np.bincount(parent[inside], weights=length[inside], minlength=len(length))
    return np.maximum(length - spent.astype(np.int64), 0)

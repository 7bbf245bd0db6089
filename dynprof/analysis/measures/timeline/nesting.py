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
_MAX_CROSSINGS = 4
"""So many spans of a thread may cross others before each is looked at by itself."""
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
    end = start + length
    for one, other in pairwise([0, *edges.tolist(), len(order)]):
        mine = order[one:other]
        inside = _parents_on_thread(start[mine], end[mine])
        found[mine] = np.append(mine, ROOT)[inside]
    return found


def _parents_on_thread(begin: Numbers, end: Numbers) -> Numbers:
    """Return the parents of the spans of one thread; the ends are changed where spans cross."""
    for _ in range(_MAX_CROSSINGS):
        found = _open_before(begin, end)
        over = np.flatnonzero((found != ROOT) & (end > end[found]))
        if not len(over):
            return found
        end[over[0]] = end[found[over[0]]]  # up to the first that crosses, all is right
    return _crossing(begin.tolist(), end.tolist())


def _open_before(begin: Numbers, end: Numbers) -> Numbers:
    """Return for each span the last one before it that is open when it begins."""
    found = np.arange(len(begin)) - 1
    wrong = np.flatnonzero(end[found[1:]] <= begin[1:]) + 1
    while len(wrong):
        found[wrong] = found[found[wrong]]  # those between the two ended even earlier
        wrong = wrong[found[wrong] != ROOT]
        wrong = wrong[end[found[wrong]] <= begin[wrong]]
    return found


def _crossing(begins: list[int], ends: list[int]) -> Numbers:
    """Return the same where spans cross; two lists are the stack of what is open."""
    found: list[int] = []
    outer, limits = [ROOT], [_NEVER]
    for place, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        while limits[-1] <= begin:
            limits.pop()
            outer.pop()
        found.append(outer[-1])
        outer.append(place)
        limits.append(end if end < limits[-1] else limits[-1])
    return np.array(found, np.int64)


def own_time(length: Numbers, parent: Numbers) -> Numbers:
    """Return what is left of each span's duration without its children's, in ns."""
    inside = parent != ROOT
    spent = np.bincount(parent[inside], weights=length[inside], minlength=len(length))
    return np.maximum(length - spent.astype(np.int64), 0)

"""Nesting of spans, and the own time of each span."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

ROOT = -1
"""The parent of a span that is inside no other."""
_MAX_CROSSINGS = 4
"""Number of crossing spans of a thread to fix one by one, before a loop over all its spans."""
_NEVER = int(np.iinfo(np.int64).max)


def parents(start: Numbers, length: Numbers, thread: Numbers) -> Numbers:
    """Return the index of the innermost span around each span, on the same thread.

    A span may end after its parent, by rounding or because ranges cross. It then counts as ending
    with its parent.

    Args:
        start: Start times, in ns, ascending. Of spans that start together, the longer is first.
        length: Durations, in ns.
        thread: Thread numbers.
    """
    found = np.full(len(start), ROOT, np.int64)
    order = np.argsort(thread, kind="stable")
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    end = start + length
    for one, other in pairwise([0, *edges.tolist(), len(order)]):
        selected = order[one:other]
        inside = _parents_on_thread(start[selected], end[selected])
        found[selected] = np.append(selected, ROOT)[inside]
    return found


def _parents_on_thread(begin: Numbers, end: Numbers) -> Numbers:
    """Return the parents of the spans of one thread. This changes ``end`` where spans cross."""
    for _ in range(_MAX_CROSSINGS):
        found = _open_before(begin, end)
        over = np.flatnonzero((found != ROOT) & (end > end[found]))
        if not len(over):
            return found
        end[over[0]] = end[found[over[0]]]  # everything before the first crossing is correct
    return _crossing(begin.tolist(), end.tolist())


def _open_before(begin: Numbers, end: Numbers) -> Numbers:
    """Return for each span the last earlier span that is still open when it starts."""
    found = np.arange(len(begin)) - 1
    wrong = np.flatnonzero(end[found[1:]] <= begin[1:]) + 1
    while len(wrong):
        found[wrong] = found[found[wrong]]  # spans between the two ended even earlier
        wrong = wrong[found[wrong] != ROOT]
        wrong = wrong[end[found[wrong]] <= begin[wrong]]
    return found


def _crossing(begins: list[int], ends: list[int]) -> Numbers:
    """Return the parents where spans cross; two lists are the stack of open spans."""
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
    """Return each span's duration without its children's, in ns."""
    inside = parent != ROOT
    spent = np.bincount(parent[inside], weights=length[inside], minlength=len(length))
    return np.maximum(length - spent.astype(np.int64), 0)

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
    found: list[int] = []
    open_: dict[int, list[tuple[int, int]]] = {}
    columns = (start.tolist(), (start + length).tolist(), thread.tolist())
    for place, (begin, end, number) in enumerate(zip(*columns, strict=True)):
        stack = open_.setdefault(number, [])
        while stack and stack[-1][1] <= begin:
            stack.pop()
        if stack:
            outer, limit = stack[-1]
            found.append(outer)
            stack.append((place, min(end, limit)))
        else:
            found.append(ROOT)
            stack.append((place, end))
    return np.array(found, np.int64)


def own_time(length: Numbers, parent: Numbers) -> Numbers:
    """Return what is left of each span's duration without its children's, in ns."""
    inside = parent != ROOT
    spent = np.bincount(parent[inside], weights=length[inside], minlength=len(length))
    return np.maximum(length - spent.astype(np.int64), 0)

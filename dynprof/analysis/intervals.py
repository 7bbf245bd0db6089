"""Unions of spans of time: what was covered, by one kind or by two at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Cover = tuple[Numbers, Numbers]
    """Begins and ends of spans that do not touch, ascending."""


def cover(start: Numbers, end: Numbers) -> Cover:
    """Return what spans cover together."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], end[last]


def covered(where: Cover) -> int:
    """Return for how long anything is covered, in the unit of the spans."""
    return int((where[1] - where[0]).sum())


def clipped(where: Cover, begin: int, end: int) -> Cover:
    """Return what of a cover lies within two times."""
    starts, ends = np.maximum(where[0], begin), np.minimum(where[1], end)
    inside = ends > starts
    return starts[inside], ends[inside]


def both(one: Cover, other: Cover) -> int:
    """Return for how long two covers overlap."""
    together = cover(np.concatenate([one[0], other[0]]), np.concatenate([one[1], other[1]]))
    return covered(one) + covered(other) - covered(together)

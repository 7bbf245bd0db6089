"""Unions and overlaps of spans of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Cover = tuple[Numbers, Numbers]
    """Starts and ends of disjoint spans, ascending."""


def cover(start: Numbers, end: Numbers) -> Cover:
    """Return the union of spans."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], end[last]


def covered(where: Cover) -> int:
    """Return the total length of a cover, in the unit of the spans."""
    return int((where[1] - where[0]).sum())


def covered_until(where: Cover, time: Numbers) -> Numbers:
    """Return the length of a cover before each time."""
    begins, ends = where
    sums = np.concatenate([[0], np.cumsum(ends - begins)])
    place = np.searchsorted(begins, time, side="right")
    last = np.append(ends, 0)[place - 1]
    found: Numbers = sums[place] - np.where(place > 0, np.maximum(last - time, 0), 0)
    return found


def inside(times: Numbers, where: Cover) -> NDArray[np.bool_]:
    """Return which times are within a cover; the end of each span is excluded."""
    return np.asarray(span_at(times, *where) >= 0)


def span_at(times: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """Return the span that contains each time; -1 for none. The spans must not overlap."""
    place = np.searchsorted(start, times, side="right") - 1
    return np.where(times < np.append(end, 0)[place], place, -1) if len(end) else place


def clipped(where: Cover, begin: int, end: int) -> Cover:
    """Return the part of a cover between two times."""
    begins, ends = where
    some = slice(np.searchsorted(ends, begin, "right"), np.searchsorted(begins, end, "left"))
    starts, ends = np.maximum(begins[some], begin), np.minimum(ends[some], end)
    inside = ends > starts
    return starts[inside], ends[inside]


def layered(covers: Mapping[str, Cover], begin: Numbers, end: Numbers) -> dict[str, Numbers]:
    """Return how much each cover adds to those before it, within each of some spans of time."""
    found, before = dict[str, "Numbers"](), np.zeros(len(begin), np.int64)
    whole = begin[:0], end[:0]
    for name, where in covers.items():
        whole = united(whole, where)
        together = covered_until(whole, end) - covered_until(whole, begin)
        found[name], before = together - before, together
    return found


def united(*covers: Cover) -> Cover:
    """Return the union of covers."""
    return cover(*(np.concatenate(ends) for ends in zip(*covers, strict=True)))


def without(one: Cover, other: Cover) -> Cover:
    """Return the part of a cover that is outside another one."""
    times = distinct(np.concatenate([*one, *other]))
    begins, ends = times[:-1], times[1:]
    kept = inside(begins, one) & ~inside(begins, other)
    return cover(begins[kept], ends[kept])


def both(one: Cover, other: Cover) -> int:
    """Return the length of the overlap of two covers."""
    return covered(one) + covered(other) - covered(united(one, other))


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct numbers, ascending.

    NumPy's own ``unique`` hashes since 2.3, which takes forty times as long if most differ.
    """
    ordered = np.sort(numbers, axis=None)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]

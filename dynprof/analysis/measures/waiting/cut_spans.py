"""Spans of time cut into pieces, so that each nanosecond is counted once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.reading.intervals import Cover

    Numbers = NDArray[np.int64]

NONE = -1
"""In place of an index, if there is none."""


def cut(start: Numbers, end: Numbers, times: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Cut spans at given times.

    Args:
        start: Starts of the spans.
        end: Their ends.
        times: Where to cut, in any order.

    Returns:
        Starts and ends of the pieces in the order of the spans, and the index of each one's span.
    """
    at = np.sort(times)
    at = at[np.append(np.ones(len(at[:1]), bool), at[1:] != at[:-1])]
    first = np.searchsorted(at, start, side="right")
    count = np.maximum(np.searchsorted(at, end, side="left") - first, 0) + 1
    of = np.repeat(np.arange(len(start)), count)
    number = np.arange(len(of)) - (np.cumsum(count) - count)[of]
    at, place = np.append(at, 0), first[of] + number
    begins = np.where(number == 0, start[of], at[place - 1])
    ends = np.where(number == count[of] - 1, end[of], at[place])
    return begins, ends, of


def inside(times: Numbers, where: Cover) -> NDArray[np.bool_]:
    """Return which times are within a cover; the end of each span is excluded."""
    return np.asarray(span_at(times, *where) != NONE)


def span_at(times: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """Return the span that contains each time; -1 for none. The spans must not overlap."""
    place = np.searchsorted(start, times, side="right") - 1
    return np.where(times < np.append(end, 0)[place], place, NONE) if len(end) else place


def cut_by_covers(
    start: Numbers, end: Numbers, covers: Sequence[Cover]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Cut spans where covers begin and end.

    Returns:
        Starts and ends of the pieces, the span of each, and the first cover around it; -1 for none.
    """
    edges = [one for where in covers for one in where]
    begins, ends, of = cut(start, end, np.concatenate(edges) if edges else start[:0])
    found = np.full(len(begins), NONE, np.int64)
    for number, where in reversed(list(enumerate(covers))):
        found[inside(begins, where)] = number
    return begins, ends, of, found

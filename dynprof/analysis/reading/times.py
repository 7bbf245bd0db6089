"""Times that cannot be: not measured, negative, in another unit, or too long for a stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import NONE, Event

if TYPE_CHECKING:
    from decimal import Decimal

    from numpy.typing import NDArray

    Spans = dict[str, NDArray[np.int64]]

_NANOSECONDS = 10**17
"""Times from here are absolute nanoseconds: as microseconds they are after the year 5000."""
_LATEST_NANOSECONDS = 1 << 62
"""Upper limit of absolute nanoseconds, in the year 2116."""
SHORTEST_TRACE_NS = 1000
"""Least length of a trace's longest span, in ns. In seconds, 1,000 of them look shorter."""
_HOUR = 3600 * 10**9
"""Nanoseconds of an hour: no window is longer, so a start of 0 before it is missing."""
_FAR_NS = 24 * _HOUR
"""Distance from the median start from which a time cannot be, in ns: no window is that long."""
_FAR_SPANS = 10
"""The same as a multiple of the time in which the middle half of the events begin."""
_MOST_OVERLONG = 0.25
"""Share of a stream's activities that may be too long; with more, the stream is not in order."""


@dataclass
class DoubtfulTimes:
    """How many events of a trace have times that cannot be, or are not read for another reason.

    Attributes:
        unreadable: Times that are missing, not a number, infinite or beyond 64 bits; left out.
        negative: Negative durations; left out.
        far: Spans and allocations that are far from all others; left out.
        not_measured: Activities of a device without a start; left out.
        overlong: Activities that last longer than their stream allows; shortened.
        in_nanoseconds: Times in nanoseconds instead of the format's microseconds; converted.
        no_events: Entries of the list of events that are none, such as a null; left out.
        too_short: Spans, if none lasts a microsecond.
        unpaired: Begins without an end, and ends without a begin, of spans on threads; left out.
        asynchronous: Begins of ranges that belong to no thread; not read.
        asynchronous_ns: The time of those, in ns.
    """

    unreadable: int = 0
    negative: int = 0
    far: int = 0
    not_measured: int = 0
    overlong: int = 0
    in_nanoseconds: int = 0
    no_events: int = 0
    too_short: int = 0
    unpaired: int = 0
    asynchronous: int = 0
    asynchronous_ns: int = 0


def is_in_nanoseconds(time: float | Decimal) -> bool:
    """Return whether a time can only be in nanoseconds, although the format has microseconds."""
    try:
        return bool(_NANOSECONDS <= time < _LATEST_NANOSECONDS)
    except ArithmeticError:  # a decimal that is not a number
        return False


def in_microseconds(event: Event) -> bool:
    """Convert the times of an event from nanoseconds; return whether they were."""
    found = is_in_nanoseconds(event.ts)
    if found:
        event.ts, event.dur = event.ts / 1000, event.dur / 1000
    return found


def usable(spans: Spans, on_device: NDArray[np.bool_], doubtful: DoubtfulTimes) -> Spans:
    """Return the spans whose times can be; count the others.

    CUPTI reports 0 for the times of a kernel that it did not measure. Kineto writes 0 for times
    before its base time.

    Args:
        spans: Columns of the spans.
        on_device: Which of them are activities of a device.
        doubtful: Where to count.
    """
    start, length = spans["start"], spans["length"]
    negative = length < 0
    zero = on_device & (start == 0)
    if zero.any():
        far = int(start[start != 0].min(initial=np.iinfo(np.int64).max)) > _HOUR
        zero &= (length == 0) | far
    doubtful.negative += int(negative.sum())
    doubtful.not_measured += int((zero & ~negative).sum())
    left_out = negative | zero
    if not left_out.any():
        return spans
    return {name: column[~left_out] for name, column in spans.items()}


def near(spans: Spans, memory: Spans, doubtful: DoubtfulTimes) -> tuple[Spans, Spans]:
    """Return spans and allocations without those far from all others; count the others.

    A damaged time is years away, and would make the trace as long.

    Args:
        spans: Columns of the spans.
        memory: Columns of the allocations.
        doubtful: Where to count.
    """
    start = spans["start"].astype(float)  # a difference of two may not fit into 64 bits
    if not len(start):
        return spans, memory
    first, middle, last = np.quantile(start, (0.25, 0.5, 0.75))
    limit = max(_FAR_NS, _FAR_SPANS * (last - first))
    kept = np.abs(start - middle) <= limit
    kept &= start + spans["length"] - middle <= limit
    known = np.abs(memory["time"].astype(float) - middle) <= limit
    doubtful.far += int((~kept).sum() + (~known).sum())
    if kept.all() and known.all():
        return spans, memory
    return (
        {name: column[kept] for name, column in spans.items()},
        {name: column[known] for name, column in memory.items()},
    )


def shorten_overlong(spans: Spans, in_order: NDArray[np.bool_]) -> int:
    """Shorten activities that outlast a later one on their stream; return how many.

    An activity ends before the next one that another call launched on its stream begins. Activities
    of one launch, such as those of a CUDA graph, may overlap. A dependent launch overlaps too, but
    ends later.

    Args:
        spans: Columns of the spans, in order of start.
        in_order: Which of them are activities of streams that run one after the other.
    """
    chosen = np.flatnonzero(in_order & (spans["correlation"] != NONE))
    keys = [spans[name][chosen] for name in ("stream", "device", "thread")]
    order = np.lexsort(keys)
    work = chosen[order]
    if not len(work):
        return 0
    start, length = spans["start"][work], spans["length"][work]
    end, launch = start + length, spans["correlation"][work]
    begins = np.zeros(len(work), bool)
    for key in keys:
        begins |= np.diff(key[order], prepend=key[order][:1] - 1) != 0
    stream = np.cumsum(begins) - 1
    begins |= np.diff(launch, prepend=launch[:1]) != 0
    launched = np.cumsum(begins) - 1
    firsts = np.append(np.flatnonzero(begins), len(work) - 1)
    after = firsts[launched + 1]
    outlasts = (stream[after] == stream) & (launch[after] != launch) & (length[after] > 0)
    outlasts &= (start < start[after]) & (start[after] < end) & (end[after] <= end)
    overlong = np.bincount(stream[outlasts], minlength=int(stream[-1]) + 1)
    most = np.maximum(_MOST_OVERLONG * np.bincount(stream), 1)
    outlasts &= (overlong <= most)[stream]
    spans["length"][work[outlasts]] = (start[after] - start)[outlasts]
    return int(outlasts.sum())

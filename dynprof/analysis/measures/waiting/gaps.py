"""Gaps of a device or of one of its streams: when it ran nothing, and what ended each gap.

The launch of the next activity divides a gap. Until that call ended, the device waited for the
host. After it, the launched activity waited for the device or its queue.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.in_flight import held, in_flight
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.reading.spans import inside

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]


EDGE = -1
"""In place of the activity before the first gap, and of the one after the last."""
NONE = -1
"""In place of an index, if there is none."""


@dataclass(frozen=True)
class Gaps:
    """Gaps in order of time; times in ns since the trace's base time.

    Attributes:
        start: When each begins: all earlier activities have ended.
        end: When it ends.
        before: Index in ``Launches.work`` of the activity that ended last before it; -1 for the
            first gap.
        after: Likewise the activity that ended it, the first of several; -1 for the last gap.
        launch_call: Index among the trace's spans of the call that launched that activity; -1 if
            there is none or none was recorded.
        called: When that call began, clipped to the gap. Without a call it is the gap's start, or
            the end for the last gap.
        launched: Likewise, when that call ended.
        in_flight: Mask of the gaps that end with an activity launched before the recording.
    """

    start: Numbers
    end: Numbers
    before: Numbers
    after: Numbers
    launch_call: Numbers
    called: Numbers
    launched: Numbers
    in_flight: NDArray[np.bool_]

    @property
    def unknown(self) -> NDArray[np.bool_]:
        """Gaps that end with an activity whose launch was not recorded."""
        known = (self.launch_call != UNKNOWN) | self.in_flight
        return np.asarray((self.after != EDGE) & ~known)

    @property
    def was_queued(self) -> NDArray[np.bool_]:
        """Gaps that end with an activity that was launched before they began."""
        known = self.launch_call != UNKNOWN
        return np.asarray((known & (self.launched <= self.start)) | self.in_flight)


def streams(trace: Trace, started: Launches) -> list[tuple[int, int]]:
    """Return the pairs of device and stream of all device activities."""
    columns = [trace.spans[name][started.work].tolist() for name in ("device", "stream")]
    return sorted(set(zip(*columns, strict=True)))


def gaps(
    trace: Trace,
    started: Launches,
    marked: Sequence[MarkedStep],
    device: int,
    stream: int | None = None,
) -> Gaps:
    """Return the gaps of a device over the marked steps and all of its activities.

    A device that ran work from before the recording has no gap then, although the trace shows
    nothing. A stream has one.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        marked: The steps, or one for the whole trace.
        device: The device.
        stream: A stream, to look at this stream only.
    """
    spans = trace.spans
    selected = spans["device"][started.work] == device
    if stream is not None:
        selected &= spans["stream"][started.work] == stream
    chosen = np.flatnonzero(selected)
    begins = spans["start"][started.work[chosen]]
    reached = np.maximum.accumulate(begins + spans["length"][started.work[chosen]])
    longest = np.concatenate([[True], reached[1:] > reached[:-1]])[: len(reached)]
    last = chosen[np.maximum.accumulate(np.where(longest, np.arange(len(chosen)), 0))]
    first, final = _window(marked, begins, reached)
    start, end = np.append(first, reached), np.append(begins, final)
    kept = end > start
    if stream is None:
        kept[:-1] &= ~held(trace, started)[chosen]
    before, after = np.append(EDGE, last)[kept], np.append(chosen, EDGE)[kept]
    return _launched(trace, started, start[kept], end[kept], before, after)


def _window(marked: Sequence[MarkedStep], begins: Numbers, reached: Numbers) -> tuple[int, int]:
    first = [step[1] for step in marked] + begins[:1].tolist()
    last = [step[1] + step[2] for step in marked] + reached[-1:].tolist()
    return min(first), max(last)


def _launched(
    trace: Trace, started: Launches, start: Numbers, end: Numbers, before: Numbers, after: Numbers
) -> Gaps:
    """Return gaps with the launches of the activities that ended them."""
    launch_call = np.append(started.call, UNKNOWN)[after]
    called, launched = start.copy(), start.copy()
    known = launch_call != UNKNOWN
    begin = trace.spans["start"][launch_call[known]]
    done = begin + trace.spans["length"][launch_call[known]]
    called[known] = np.clip(begin, start[known], end[known])
    launched[known] = np.clip(done, start[known], end[known])
    closing = after == EDGE
    called[closing] = launched[closing] = end[closing]
    flying = np.append(in_flight(trace, started), False)[after]
    return Gaps(start, end, before, after, launch_call, called, launched, flying)


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

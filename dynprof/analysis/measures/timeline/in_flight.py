"""Work that had been launched before the recording began.

A device may run such work when a window opens. Kineto drops what began before the window, and
some devices record nothing that was launched before it. A device is not idle then, although the
trace shows nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import STREAM_KEY_FACTOR, UNKNOWN, without_work
from dynprof.analysis.reading.events import NONE
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

MIN_HELD_NS = 100_000
"""Shortest delay of the first work on an idle device, in ns, that shows that other work was first.

A launch on an idle device takes some 10 us.
"""
_LATEST = np.iinfo(np.int64).max
"""In place of the first time of a trace without events, in ns."""


def in_flight(trace: Trace, found: Launches) -> NDArray[np.bool_]:
    """Return which device activities were launched before the recording began.

    The trace has no launch of them, nor of any earlier activity on their stream. If it has no
    launch at all, the host was not recorded, and nothing is known. Nothing is known either of
    activities without a correlation id, such as the collectives of an NPU.
    """
    unknown = np.asarray(found.call == UNKNOWN)
    if unknown.all():
        return np.zeros(len(unknown), bool)
    first, stream = _streams(trace, found)
    known_from = np.full(len(first), len(unknown))
    np.minimum.at(known_from, stream[~unknown], np.flatnonzero(~unknown))
    linked = trace.spans["correlation"][found.work] != NONE
    return np.asarray(unknown & linked & (np.arange(len(unknown)) < known_from[stream]))


def held(trace: Trace, found: Launches) -> NDArray[np.bool_]:
    """Return which device activities began late because of work that the trace does not have.

    That work was launched before the recording. Such an activity was in flight as well, or it is
    the first of its stream, and the device ran nothing for longer after its launch than after any
    other launch on an idle device. No launch before it has lost its activity.
    """
    spans, flying = trace.spans, in_flight(trace, found)
    late, known = flying.copy(), found.call != UNKNOWN
    first, _ = _streams(trace, found)
    lost = spans["start"][without_work(trace)].min(initial=_LATEST)
    late[first] |= known[first] & (spans["start"][found.call[first]] <= lost)
    end, start = spans["start"] + spans["length"], spans["start"][found.work]
    ready = np.where(known, end[found.call], spans["start"].min(initial=_LATEST))
    on = spans["device"][found.work]
    for device in distinct(on).tolist():
        selected = np.flatnonzero(on == device)
        ended = np.maximum.accumulate(end[found.work[selected]])[:-1]
        ready[selected[1:]] = np.maximum(ready[selected[1:]], ended)
    delay = start - ready
    usual = int(delay[known & ~late].max(initial=0))
    opens = np.zeros(len(late), bool)
    opens[np.unique(on, return_index=True)[1]] = True
    return late & ((opens & flying) | (delay > np.where(flying, 0, usual).clip(MIN_HELD_NS)))


def earlier_work(trace: Trace, found: Launches, device: int) -> Cover:
    """Return when a device ran work that was launched before the recording and is not in it."""
    spans, selected = trace.spans, trace.spans["device"][found.work] == device
    work, late = found.work[selected], held(trace, found)[selected]
    ended = np.maximum.accumulate((spans["start"] + spans["length"])[work])
    free = np.append(spans["start"].min(initial=_LATEST), ended)[:-1]
    return free[late], spans["start"][work][late]


def _streams(trace: Trace, found: Launches) -> tuple[Numbers, Numbers]:
    """Return the first activity of each stream, and the stream of each activity."""
    spans = trace.spans
    key = spans["device"][found.work] * STREAM_KEY_FACTOR + spans["stream"][found.work]
    _, first, stream = np.unique(key, return_index=True, return_inverse=True)
    return first, stream

"""What went on beside a stream that ran nothing though its next work had been launched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.waiting.cut_spans import by_first
from dynprof.analysis.measures.waiting.idle import KINDS, QUEUED
from dynprof.analysis.reading.categories import COPIES, MEMSETS, ON_DEVICE, SYNCHRONISATIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.waiting.gaps import Gaps
    from dynprof.analysis.measures.waiting.idle import Idle
    from dynprof.analysis.reading.trace import Trace

EVENT, BESIDE_COPIES = "queued for an event", "queued beside a copy"
BESIDE_KERNELS, ALONE = "queued beside kernels", "queued alone"
REASONS = (EVENT, BESIDE_COPIES, BESIDE_KERNELS, ALONE)
"""For an event, as CUPTI tells where it records synchronisations; else only what ran meanwhile."""
_WAIT = "Stream Wait Event"


def queued_while(
    trace: Trace, started: Launches, found: Gaps, why: Idle, device: int, stream: int
) -> dict[str, int]:
    """Return how long a stream's next work was queued while what went on, in ns.

    Together that is all time in which it was queued.

    Args:
        trace: The trace.
        started: What devices did.
        found: The gaps of the stream.
        why: Why there were those.
        device: The stream's device.
        stream: Which stream it is.
    """
    spans = trace.spans
    queued = why.picked(why.kind == KINDS.index(QUEUED))
    others = trace.category(ON_DEVICE) & (spans["device"] == device) & (spans["stream"] != stream)
    copies = others & trace.category(COPIES, MEMSETS)
    covers = [trace.when(copies), trace.when(others & ~copies)]
    start, end, of, beside = by_first(queued.start, queued.end, covers)
    beside = np.where(beside == UNKNOWN, len(covers), beside)
    for_event = _has_wait(trace, started, found, device, stream)[queued.gap[of]]
    times = np.zeros(len(REASONS), np.int64)
    np.add.at(times, np.where(for_event, 0, 1 + beside), (end - start) * queued.weight[of])
    return dict(zip(REASONS, times.tolist(), strict=True))


def _has_wait(
    trace: Trace, started: Launches, found: Gaps, device: int, stream: int
) -> NDArray[np.bool_]:
    """Return before which gaps' ends the stream was told to wait for an event.

    That is, between the launches of what ran before the gap and of what ended it.
    """
    spans = trace.spans
    waits = trace.category(SYNCHRONISATIONS) & trace.named(_WAIT.__eq__)
    waits &= (spans["device"] == device) & (spans["stream"] == stream)
    told = spans["start"][waits]
    before = np.append(started.call, UNKNOWN)[found.before]
    known = (before != UNKNOWN) & (found.asked != UNKNOWN)
    count = np.zeros(len(found.start), np.int64)
    begins = spans["start"]
    count[known] = np.searchsorted(told, begins[found.asked[known]], side="right")
    count[known] -= np.searchsorted(told, begins[before[known]], side="left")
    return np.asarray(count > 0)

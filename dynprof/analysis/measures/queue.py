"""How long work is queued between its launch and its start, and how deep the queue is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.idle import KINDS, QUEUED, cut_by_covers
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.reading.events import COPIES, MEMSETS, ON_DEVICE, SYNCHRONISATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.idle import Gaps, Idle
    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

PERCENTILES = (50, 90, 99, 100)
"""Percentiles that are shown; the last is the maximum."""
EVENT, DURING_COPY = "queued for an event", "queued during a copy"
DURING_KERNELS, ALONE = "queued during kernels", "queued alone"
REASONS = (EVENT, DURING_COPY, DURING_KERNELS, ALONE)
"""Why work is queued. Waits for events are known only if CUPTI recorded synchronisations; the other
reasons are what ran on other streams at that time."""
_WAIT = "Stream Wait Event"


@dataclass(frozen=True)
class Queue:
    """The queue of a stream or of a whole device; times in ns since the trace's base time.

    Attributes:
        work: Activities with a recorded launch, as indices in ``Launches.work``.
        begun: When the launch call of each began. The activity is in the queue from then on.
        launched: When that call ended.
        start: When each started on the device and left the queue.
        times: When the depth of the queue changes, ascending.
        depth: How many activities are queued from each of these times on.
    """

    work: Numbers
    begun: Numbers
    launched: Numbers
    start: Numbers
    times: Numbers
    depth: Numbers

    @property
    def delay(self) -> Numbers:
        """Time from the end of each launch to the start on the device; 0 if it started earlier."""
        return np.asarray(np.maximum(self.start - self.launched, 0))

    def depth_percentiles(self, percents: Sequence[float] = PERCENTILES) -> list[int]:
        """Return the depths that the queue does not exceed for these percentages of its time."""
        if len(self.times) < 2:
            return [0 for _ in percents]
        lasts = np.diff(self.times)
        order = np.argsort(self.depth[:-1], kind="stable")
        reached = np.cumsum(lasts[order])
        place = np.searchsorted(reached, np.array(percents) / 100 * reached[-1])
        return [int(depth) for depth in self.depth[:-1][order][np.minimum(place, len(order) - 1)]]

    def waited_until(self, times: Numbers) -> Numbers:
        """Return the total time that all work had waited until each time, in ns."""
        first = self.begun[:1].min(initial=0)  # sums of ns since 1970 would not fit into 64 bits
        return _sum_until(self.begun - first, times - first) - _sum_until(
            self.start - first, times - first
        )


def _sum_until(moments: Numbers, times: Numbers) -> Numbers:
    """Return for each time the sum of the time passed since all earlier moments."""
    ordered = np.sort(moments)
    sums = np.append(0, np.cumsum(ordered))
    count = np.searchsorted(ordered, times, side="right")
    return np.asarray(count * times - sums[count])


def queue(trace: Trace, started: Launches, device: int, stream: int | None = None) -> Queue:
    """Return the queue of a stream, or of a whole device."""
    spans = trace.spans
    selected = (spans["device"][started.work] == device) & (started.call != UNKNOWN)
    if stream is not None:
        selected &= spans["stream"][started.work] == stream
    chosen = np.flatnonzero(selected)
    call = started.call[chosen]
    begun, start = spans["start"][call], spans["start"][started.work[chosen]]
    start = np.maximum(start, begun)
    times = np.concatenate([begun, start])
    change = np.repeat([1, -1], len(chosen))
    order = np.argsort(times, kind="stable")
    times, depth = times[order], np.cumsum(change[order])
    last = np.append(times[1:] != times[:-1], np.ones(len(times[:1]), bool))
    return Queue(
        work=chosen,
        begun=begun,
        launched=begun + spans["length"][call],
        start=start,
        times=times[last],
        depth=depth[last],
    )


def queue_blockers(trace: Trace, started: Launches, found: Queue) -> list[tuple[str, int, int]]:
    """Return name, count and wait of the work that ran while other work in the queue waited.

    The wait is the sum over all queued work, in ns, the longest first. Waits while nothing ran are
    not included.
    """
    spans, work = trace.spans, started.work[found.work]
    start, end = spans["start"][work], spans["start"][work] + spans["length"][work]
    time = found.waited_until(end) - found.waited_until(start)
    names, of = np.unique(spans["name"][work], return_inverse=True)
    times = np.zeros(len(names), np.int64)
    np.add.at(times, of, time)
    counts = np.bincount(of, minlength=len(names))
    columns = zip(names.tolist(), counts.tolist(), times.tolist(), strict=True)
    rows = [(str(trace.tables["name"][name]), count, time) for name, count, time in columns]
    return sorted(rows, key=lambda row: (-row[2], row[0]))


def queue_reasons(
    trace: Trace, started: Launches, found: Gaps, why: Idle, device: int, stream: int
) -> dict[str, int]:
    """Return how long a stream's next work was queued for each of :data:`REASONS`, in ns.

    The times add up to all time in which it was queued.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        found: The gaps of the stream.
        why: The causes of these gaps.
        device: The stream's device.
        stream: The stream.
    """
    spans = trace.spans
    queued = why.select(why.kind == KINDS.index(QUEUED))
    others = trace.category(ON_DEVICE) & (spans["device"] == device) & (spans["stream"] != stream)
    copies = others & trace.category(COPIES, MEMSETS)
    covers = [trace.when(copies), trace.when(others & ~copies)]
    start, end, of, other = cut_by_covers(queued.start, queued.end, covers)
    other = np.where(other == UNKNOWN, len(covers), other)
    for_event = _has_wait(trace, started, found, device, stream)[queued.gap[of]]
    times = np.zeros(len(REASONS), np.int64)
    np.add.at(times, np.where(for_event, 0, 1 + other), (end - start) * queued.weight[of])
    return dict(zip(REASONS, times.tolist(), strict=True))


def _has_wait(
    trace: Trace, started: Launches, found: Gaps, device: int, stream: int
) -> NDArray[np.bool_]:
    """Return which gaps end after a wait of the stream for an event.

    The wait was called between the launches of the activities before and after the gap.
    """
    spans = trace.spans
    waits = trace.category(SYNCHRONISATIONS) & trace.named(_WAIT.__eq__)
    waits &= (spans["device"] == device) & (spans["stream"] == stream)
    wait_starts = spans["start"][waits]
    before = np.append(started.call, UNKNOWN)[found.before]
    known = (before != UNKNOWN) & (found.launch_call != UNKNOWN)
    count = np.zeros(len(found.start), np.int64)
    begins = spans["start"]
    count[known] = np.searchsorted(wait_starts, begins[found.launch_call[known]], side="right")
    count[known] -= np.searchsorted(wait_starts, begins[before[known]], side="left")
    return np.asarray(count > 0)

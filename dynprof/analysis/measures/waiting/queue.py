"""How long work waits from its launch to its start, and how much of it waits at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.waiting.cut_spans import cut_by_covers
from dynprof.analysis.measures.waiting.idle import KINDS, QUEUED
from dynprof.analysis.reading.categories import COPIES, MEMSETS, ON_DEVICE, SYNCHRONISATIONS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.waiting.gaps import Gaps
    from dynprof.analysis.measures.waiting.idle import Idle
    from dynprof.analysis.reading.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

PERCENTILES = (50, 90, 99, 100)
"""Those that are shown; the last is the most."""


@dataclass(frozen=True)
class Queue:
    """The queue of a stream, or of all of a device; times in ns since the trace's base time.

    Attributes:
        work: What was launched and recorded with its launch: places in ``Launches.work``.
        begun: When the call that launched each had begun: from then on it is in the queue.
        launched: When that call had ended.
        start: When each started on the device, and left the queue.
        times: When the depth of the queue changes, ascending.
        depth: How much waits from each of these times on.
    """

    work: Numbers
    begun: Numbers
    launched: Numbers
    start: Numbers
    times: Numbers
    depth: Numbers

    @property
    def delay(self) -> Numbers:
        """From the end of each launch to the start on the device; 0 where it started before."""
        return np.asarray(np.maximum(self.start - self.launched, 0))

    def depth_percentiles(self, percents: Sequence[float] = PERCENTILES) -> list[int]:
        """Return depths that the queue does not exceed for so many percent of its time."""
        if len(self.times) < 2:
            return [0 for _ in percents]
        lasts = np.diff(self.times)
        order = np.argsort(self.depth[:-1], kind="stable")
        reached = np.cumsum(lasts[order])
        place = np.searchsorted(reached, np.array(percents) / 100 * reached[-1])
        return [int(depth) for depth in self.depth[:-1][order][np.minimum(place, len(order) - 1)]]

    def waited_until(self, times: Numbers) -> Numbers:
        """Return for how long all work together had waited until some times, in ns."""
        first = self.begun[:1].min(initial=0)  # sums of ns since 1970 would not fit into 64 bits
        return _sum_until(self.begun - first, times - first) - _sum_until(
            self.start - first, times - first
        )


def _sum_until(moments: Numbers, times: Numbers) -> Numbers:
    """Return the sum of what has passed since those of some moments that lie before each time."""
    ordered = np.sort(moments)
    sums = np.append(0, np.cumsum(ordered))
    count = np.searchsorted(ordered, times, side="right")
    return np.asarray(count * times - sums[count])


def queue(trace: Trace, started: Launches, device: int, stream: int | None = None) -> Queue:
    """Return the queue of a stream, or of all of a device."""
    spans = trace.spans
    mine = (spans["device"][started.work] == device) & (started.call != UNKNOWN)
    if stream is not None:
        mine &= spans["stream"][started.work] == stream
    chosen = np.flatnonzero(mine)
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
    """Return what ran while other work of its stream waited: name, count, and how long that waited.

    Of all work in the queue together, the worst first, in ns; what waited while the stream ran
    nothing is not among it.
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


EVENT, DURING_COPY = "queued for an event", "queued beside a copy"
DURING_KERNELS, ALONE = "queued beside kernels", "queued alone"
REASONS = (EVENT, DURING_COPY, DURING_KERNELS, ALONE)
"""For an event, as CUPTI tells where it records synchronisations; else only what ran meanwhile."""
_WAIT = "Stream Wait Event"


def queue_reasons(
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
    queued = why.select(why.kind == KINDS.index(QUEUED))
    others = trace.category(ON_DEVICE) & (spans["device"] == device) & (spans["stream"] != stream)
    copies = others & trace.category(COPIES, MEMSETS)
    covers = [trace.when(copies), trace.when(others & ~copies)]
    start, end, of, beside = cut_by_covers(queued.start, queued.end, covers)
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
    known = (before != UNKNOWN) & (found.launch_call != UNKNOWN)
    count = np.zeros(len(found.start), np.int64)
    begins = spans["start"]
    count[known] = np.searchsorted(told, begins[found.launch_call[known]], side="right")
    count[known] -= np.searchsorted(told, begins[before[known]], side="left")
    return np.asarray(count > 0)

"""Why the device was idle, and how long launched work waited, as plain data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.waiting.gaps import gaps, streams
from dynprof.analysis.measures.waiting.idle import QUEUED, idle
from dynprof.analysis.measures.waiting.queue import (
    EVENT,
    PERCENTILES,
    queue,
    queue_blockers,
    queue_reasons,
)
from dynprof.analysis.reading.categories import SYNCHRONISATIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.waiting.queue import Queue

    Numbers = NDArray[np.int64]

MOST_STREAMS, MOST_BEHIND, MOST_POINTS = 32, 5, 600

Data = dict[str, Any]


def waiting(measured: MeasuredTrace) -> Data | None:
    """Return why the device was idle in the mean step, in ms; None if no device worked."""
    steps, found = measured.breakdown, measured.idle
    if found is None:
        return None
    each = 1e6 * max(1, steps.count)
    trace, started = measured.trace, measured.launches
    numbers = [stream for device, stream in streams(trace, started) if device == steps.device]
    queues = {stream: queue(trace, started, steps.device, stream) for stream in numbers}
    whole = queue(trace, started, steps.device)
    return {
        "device": steps.device,
        "step": steps.a_step,
        "kinds": {name: time / each for name, time in found.by_kind().items()},
        "causes": [[name, time / each] for name, time in found.by_cause().items() if time],
        "streams": [_stream(measured, one, queues[one]) for one in numbers[:MOST_STREAMS]],
        "count": len(numbers),
        "percentiles": list(PERCENTILES),
        "delay": _delays(whole),
        "behind": _behind(measured, queues.values()),
        "depth": _depth(whole),
        "delays": _delays_over_time(whole),
    }


def _behind(measured: MeasuredTrace, queues: Iterable[Queue]) -> list[list[Any]]:
    """Return the work that held up its stream longest: name, count, and total ms of waiting."""
    counts, times = Counter[str](), Counter[str]()
    for one in queues:
        for name, count, time in queue_blockers(measured.trace, measured.launches, one):
            counts[name] += count
            times[name] += time
    return [[name, counts[name], ns / 1e6] for name, ns in times.most_common(MOST_BEHIND) if ns]


def _stream(measured: MeasuredTrace, stream: int, own: Queue) -> Data:
    """Return the gaps of a stream over the whole trace, in ms, and the depth of its queue."""
    trace, started, device = measured.trace, measured.launches, measured.breakdown.device
    found = gaps(trace, started, measured.marked, device, stream)
    why = idle(trace, started, measured.host_waits, found)
    kinds = why.by_kind() | queue_reasons(trace, started, found, why, device, stream)
    told = trace.category(SYNCHRONISATIONS).any()
    left_out = {QUEUED} if told else {QUEUED, EVENT}
    return {
        "stream": stream,
        "count": len(own.work),
        "kinds": {name: time / 1e6 for name, time in kinds.items() if name not in left_out},
        "delay": _delays(own),
        "depth": own.depth_percentiles(),
    }


def _delays(found: Queue) -> list[float] | None:
    """Return percentiles of the time from launch to start, in us; None if unknown."""
    if not len(found.work):
        return None
    return [float(delay) / 1e3 for delay in np.percentile(found.delay, PERCENTILES)]


def _depth(found: Queue) -> Data:
    """Return the highest depth of the queue in each slice of time; times in ms."""
    kept = _highest(found.times, found.depth)
    times = found.times[kept] - found.times[:1]
    return {"ms": (times / 1e6).tolist(), "depth": found.depth[kept].tolist()}


def _delays_over_time(found: Queue) -> Data:
    """Return the longest delay of a launch in each slice of time; times in ms, delays in us."""
    order = np.argsort(found.launched, kind="stable")
    times, delays = found.launched[order], found.delay[order]
    kept = _highest(times, delays)
    times = times[kept] - found.times[:1]  # same origin as the depth
    return {"ms": (times / 1e6).tolist(), "us": (delays[kept] / 1e3).tolist()}


def _highest(times: Numbers, values: Numbers) -> Numbers:
    """Return the indexes of the points to draw: if there are many, the highest of each slice."""
    if len(times) <= MOST_POINTS:
        return np.arange(len(times))
    slices = (times - times[0]) * MOST_POINTS // (int(times[-1] - times[0]) + 1)
    ranked = np.lexsort((values, slices))
    last = np.append(slices[ranked][1:] != slices[ranked][:-1], [True])
    return np.sort(ranked[last])

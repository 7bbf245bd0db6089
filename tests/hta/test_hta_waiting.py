"""Idle time, launch delays and queues of real traces, next to those of the real HTA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip(
    "hta.version", reason="HolisticTraceAnalysis is not installed; CI compares with it"
)

from dynprof.analysis.measures.idle import EDGE, gaps, streams
from dynprof.analysis.measures.queue import queue

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

pytestmark = [
    pytest.mark.hta,
    pytest.mark.filterwarnings("ignore"),  # from HTA's use of pandas
]


def test_idle_time_of_streams(both: tuple[MeasuredTrace, Any]) -> None:
    """Total idle time matches; so does host-bound idle time, where the next launch came late."""
    measured, analysis = both
    numbers = [stream for _, stream in streams(measured.trace, measured.launches)]
    theirs, _ = analysis.get_idle_time_breakdown(ranks=[0], streams=numbers, visualize=False)
    device = measured.breakdown.device
    for stream in numbers:
        found = gaps(measured.trace, measured.launches, measured.marked, device, stream)
        inner = (found.before != EDGE) & (found.after != EDGE)
        lasts = (found.end - found.start)[inner] / 1000
        late = (measured.trace.spans["start"][found.launch_call] > found.start)[inner]
        rows = theirs[theirs["stream"] == stream]
        by_kind = dict(zip(rows["idle_category"], rows["idle_time"], strict=True))
        assert lasts.sum() == pytest.approx(sum(by_kind.values()), rel=1e-5, abs=1)
        assert lasts[late].sum() == pytest.approx(by_kind.get("host_wait", 0), rel=1e-5, abs=1)


def test_launch_delays(both: tuple[MeasuredTrace, Any]) -> None:
    """Delays from the end of a launch to the start on the device match."""
    measured, analysis = both
    theirs = analysis.get_cuda_kernel_launch_stats(
        ranks=[0], visualize=False, include_memory_events=True
    )[0]
    expected = dict(zip(theirs["correlation"], theirs["launch_delay"], strict=True))
    found = queue(measured.trace, measured.launches, measured.breakdown.device)
    work = measured.launches.work[found.work]
    ours = dict(
        zip(
            measured.trace.spans["correlation"][work].tolist(),
            (found.delay / 1000).tolist(),
            strict=True,
        )
    )
    common = sorted(set(expected) & set(ours))
    assert len(common) > 0.9 * len(ours)
    assert [ours[one] for one in common] == pytest.approx(
        [expected[one] for one in common], abs=0.6
    )


def test_length_of_queues(both: tuple[MeasuredTrace, Any]) -> None:
    """The longest queue of each stream matches; simultaneous events may come in any order."""
    measured, analysis = both
    theirs = analysis.get_queue_length_time_series(ranks=[0])[0]
    for device, stream in streams(measured.trace, measured.launches):
        found = queue(measured.trace, measured.launches, device, stream)
        rows = theirs[theirs["stream"] == stream].groupby("ts")["queue_length"].last()
        assert len(rows) == len(found.times)
        assert found.depth.max() == pytest.approx(rows.max(), abs=1)
        assert np.mean(found.depth == rows.to_numpy()) > 0.95

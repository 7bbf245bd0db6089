"""Queued work waits for an event, next to a copy, next to kernels, or alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.idle import gaps, idle
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.queue import REASONS, queue_reasons

if TYPE_CHECKING:
    from pathlib import Path


def event(name: str, category: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    """Return an event of a trace."""
    common = {"ph": "X", "pid": 1, "tid": 1 if "cuda_runtime" in category else 7}
    return {**common, "name": name, "cat": category, "ts": ts, "dur": dur, "args": args}


@pytest.mark.parametrize(
    ("beside", "expected"),
    [
        ([], (0, 0, 0, 80)),
        ([("gemm", "kernel", 20, 90)], (0, 0, 80, 0)),
        ([("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 20, 90)], (0, 80, 0, 0)),
        ([("Memcpy HtoD (Pinned -> Device)", "gpu_memcpy", 30, 20), ("gemm", "kernel", 40, 20)],
         (0, 20, 10, 50)),
        ([("Stream Wait Event", "cuda_sync", 3, 1)], (80, 0, 0, 0)),
        ([("Stream Wait Event", "cuda_sync", 0.5, 0.1)], (0, 0, 0, 80)),
        ([("Stream Sync", "cuda_sync", 3, 1)], (0, 0, 0, 80)),
    ],
)  # fmt: skip
def test_concurrent_work_is_named(
    tmp_path: Path, beside: list[tuple[str, str, float, float]], expected: tuple[int, ...]
) -> None:
    """There are 80 us between two kernels of a stream; the second was launched in time.

    An event counts if the stream was told to wait for it between their launches.
    """
    mine = {"device": 0, "stream": 7}
    events = [
        event("cudaLaunchKernel", "cuda_runtime", 1, 1, correlation=1),
        event("cudaLaunchKernel", "cuda_runtime", 5, 1, correlation=2),
        event("first", "kernel", 2, 18, correlation=1, **mine),
        event("second", "kernel", 100, 10, correlation=2, **mine),
    ]
    for name, category, ts, dur in beside:
        stream = 7 if category == "cuda_sync" else 20
        events.append(event(name, category, ts, dur, device=0, stream=stream, correlation=-1))
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    measured = MeasuredTrace(path)
    trace, started = measured.trace, measured.launches
    found = gaps(trace, started, measured.marked, 0, 7)
    why = idle(trace, started, measured.host_waits, found)
    times = queue_reasons(trace, started, found, why, 0, 7)
    assert tuple(time // 1000 for time in times.values()) == expected
    assert tuple(times) == REASONS

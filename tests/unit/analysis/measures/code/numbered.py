"""Small traces of operators with sequence numbers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.measured_trace import MeasuredTrace

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
GRAPH = "autograd::engine::evaluate_function"


def write(path: Path, events: list[Event]) -> MeasuredTrace:
    """Return a trace of a few events on thread 1 of process 1."""
    whole = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    return MeasuredTrace(path)


def operator(name: str, ts: int, dur: int, sequence: int, thread: int = 1) -> Event:
    """Return an operator with a sequence number."""
    event = {"name": name, "cat": "cpu_op", "ts": ts, "dur": dur, "tid": thread}
    return {**event, "args": {"Sequence number": sequence}}

"""Traces of ranks that work together, each with its own clock."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MS = 1000.0
STEPS = 5


def events(work_ms: float, late_ms: float, ahead_ms: float, rank: int) -> list[dict[str, Any]]:
    """Return a rank's events: it loads data, computes, and all-reduces until all ranks end."""
    found: list[dict[str, Any]] = []
    common = {"ph": "X", "pid": rank, "tid": 1}
    for number in range(STEPS):
        begin = (100 * number + ahead_ms) * MS
        compute = (10 + work_ms) * MS
        end = begin + 80 * MS
        arrived = begin + 5 * MS + compute + late_ms * MS
        spans = (
            (f"ProfilerStep#{number}", "user_annotation", begin, 90 * MS),
            ("dataloader", "user_annotation", begin, 5 * MS),
            ("aten::mm", "cpu_op", begin + 5 * MS, compute),
            ("gloo:all_reduce", "user_annotation", arrived, end - arrived),
        )
        for name, category, ts, dur in spans:
            found.append({**common, "name": name, "cat": category, "ts": ts, "dur": dur})
    return found


def write(folder: Path, rank: int, **settings: float) -> None:
    """Write a rank's trace."""
    trace = {
        "baseTimeNanoseconds": 10**18,
        "distributedInfo": {"rank": rank, "world_size": 4},
        "traceEvents": events(**{"work_ms": 0, "late_ms": 0, "ahead_ms": 0, **settings}, rank=rank),
    }
    (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))

"""Traces of steps with a given number of calls of one operator."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, steps: int, products: int, ms: float, **event: Any) -> Path:
    """Write a trace: the number of steps, products per step, and ms per product are given."""
    events: list[dict[str, Any]] = []
    common = {"ph": "X", "pid": 1, "tid": 1}
    for step in range(steps):
        begin = step * 1e6
        name = f"ProfilerStep#{step}"
        events.append({**common, "name": name, "cat": "user_annotation", "ts": begin, "dur": 9e5})
        events.append({**common, "name": "aten::add", "cat": "cpu_op", "ts": begin + 5, "dur": 10})
        for number in range(products):
            ts, dur = begin + 1000 + number * ms * 1000, ms * 1000
            events.append({**common, "name": "aten::mm", "cat": "cpu_op", "ts": ts, "dur": dur})
    if event:
        events.append({**common, "name": "extra", "ts": 800_001, "dur": 1, **event})
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return path

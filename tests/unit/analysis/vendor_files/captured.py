"""A trace with a manifest next to it, as dynprof writes them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.captures.trace_packing import pack
from dynprof.runtime.layout import INFO_DIR, window_dir_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WHEN = "2026-11-22T00:00:00Z"


def captured(
    folder: Path, events: Sequence[dict[str, Any]], rank: int = 0, added: Any = (), **config: Any
) -> MeasuredTrace:
    """Return a capture of these events, read back.

    Args:
        folder: The output folder.
        events: The profiler's events.
        rank: The rank of the process.
        added: Events of collectors.
        config: The requested config.
    """
    path = folder / f"host_1.rank{rank}.1.pt.trace.json"
    raw = json.dumps({"baseTimeNanoseconds": 0, "traceEvents": list(events)}).encode()
    with path.open("wb") as packed:
        pack(io.BytesIO(raw), packed, name=path.name, first_members={"rank": rank},
             on_chunk=lambda: None, events=added)  # fmt: skip
    manifest = Manifest(
        dynprof="0", backend="torch", versions={}, host="host", pid=1, rank=rank, world_size=2,
        request=RequestRecord(number=1, edited_at=WHEN, sha256="", config=config),
        steps=Steps(first=0, last=0, recorded=1, warmup=0), activities=("CPU",), opened_at=WHEN,
        closed_at=WHEN, complete=True, trace=path.name, cost=Cost(open_ms=0, close_ms=0),
    )  # fmt: skip
    (folder / INFO_DIR).mkdir(exist_ok=True)
    manifest.save(folder / INFO_DIR / f"rank_{rank}.info.json")
    return MeasuredTrace(path)


def window(
    place: Path,
    hour: int,
    ms: float | Sequence[float],
    cost: Mapping[str, float] | None = None,
    **config: Any,
) -> MeasuredTrace:
    """Return a capture of three steps with an ``aten::mm`` each, but 1 ms of the step.

    Args:
        place: The folder of captures.
        hour: The hour in which it was recorded; also its step.
        ms: The duration of a step, or of each.
        cost: What its manifest says of its cost.
        config: The requested config.
    """
    took = [ms] * 3 if isinstance(ms, int | float) else ms
    folder = place / window_dir_name(hour, hour, hour * 3600)
    folder.mkdir()
    step = {"ph": "X", "pid": 1, "tid": 1}
    events = [
        event
        for number, lasts in enumerate(took)
        for event in (
            {**step, "name": f"ProfilerStep#{number}", "cat": "user_annotation",
             "ts": number * 1e6, "dur": lasts * 1e3},
            {**step, "name": "aten::mm", "cat": "cpu_op",
             "ts": number * 1e6 + 500, "dur": (lasts - 1) * 1e3},
        )
    ]  # fmt: skip
    measured = captured(folder, events, **config)
    at = f"2026-11-22T{hour:02}:00:00.000+00:00"
    (path,) = folder.glob("info/*.json")
    assert measured.manifest
    costs = measured.manifest.cost.model_copy(update=dict(cost or {}))
    steps = measured.manifest.steps.model_copy(update={"last": 2, "recorded": 3})
    changed = {"opened_at": at, "cost": costs, "steps": steps}
    measured.manifest.model_copy(update=changed).save(path)
    return type(measured)(measured.path)

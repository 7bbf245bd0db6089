"""dynprof's marks on streams of a device: the analysis does not count them as work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.backends.torch.collectors import LABEL

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
HOST, DEVICE = {"ph": "X", "pid": 99, "tid": 99}, {"ph": "X", "pid": 0, "tid": 7}


def launched(name: str, begin: float, number: int) -> list[Event]:
    """Return an operator, its launch, and a kernel of 50 us."""
    args = {"External id": number, "correlation": 70 + number}
    return [
        {**HOST, "cat": "cpu_op", "name": name, "ts": begin, "dur": 20, "args": {}},
        {**HOST, "cat": "cuda_runtime", "name": "launch", "ts": begin + 5, "dur": 5, "args": args},
        {**DEVICE, "cat": "kernel", "name": f"kernel of {name}", "ts": begin + 100, "dur": 50,
         "args": {**args, "device": 0, "stream": 7}},
    ]  # fmt: skip


def step(*, marked: bool) -> list[Event]:
    """Return a step of two operators, with a mark between them and one after them."""
    label = {**HOST, "cat": "user_annotation"}
    found = [{**label, "name": "ProfilerStep#0", "ts": 0, "dur": 900}]
    found += launched("aten::mm", 100, 1) + launched("aten::zero_", 300, 2)
    for begin, number in ((200, 3), (400, 4)) if marked else ():
        found += [
            {**label, "name": LABEL, "ts": begin, "dur": 40},
            {**label, "name": "upload", "ts": begin + 5, "dur": 30},
            *launched("aten::zero_", begin + 10, number),
            {
                **DEVICE,
                "cat": "gpu_user_annotation",
                "name": "upload",
                "ts": begin + 110,
                "dur": 50,
            },
        ]
    return found


def measured(folder: Path, events: list[Event]) -> MeasuredTrace:
    """Return the measurements of events."""
    path = folder / f"{len(events)}.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return MeasuredTrace(path)


def test_a_mark_on_a_stream_does_not_count_as_work(tmp_path: Path) -> None:
    """Operators, kernels and steps are the same with a mark; the script's own ``zero_`` counts."""
    plain, marked = measured(tmp_path, step(marked=False)), measured(tmp_path, step(marked=True))
    for one in (plain, marked):
        assert sorted((a.name, a.count) for a in one.work) == [("aten::mm", 1), ("aten::zero_", 1)]
        assert sorted(kind.name for kind in one.kinds) == [
            "kernel of aten::mm", "kernel of aten::zero_",
        ]  # fmt: skip
        assert [kind.count for kind in one.kinds] == [1, 1]
    assert marked.averages == plain.averages
    assert marked.steps == plain.steps

"""Two captures against each other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import (
    growths,
    part_growths,
    phase_growths,
    why_not_comparable,
)
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.step_traces import write

if TYPE_CHECKING:
    from pathlib import Path


def test_what_grew_is_named_by_what_it_costs_a_step(tmp_path: Path) -> None:
    """Windows of other lengths are compared step by step; what did not change is left out."""
    one = MeasuredTrace(write(tmp_path / "a.trace.json", steps=2, products=3, ms=10))
    other = MeasuredTrace(write(tmp_path / "b.trace.json", steps=5, products=4, ms=20))
    first, *rest = growths(one, other)
    assert (first.name, first.where, first.count) == ("aten::mm", "host", (3, 4))
    assert first.time_ns == (30e6, 80e6)
    assert first.cost_ns == 50e6
    assert rest == []
    assert why_not_comparable(one, other) == []


def test_phases_that_grew_are_named(tmp_path: Path) -> None:
    """By their own labels: the backward pass takes 3 ms more of a step, which is no longer."""
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation"}
    captures = []
    for number, backward_ms in enumerate((4, 7)):
        events = [
            {**common, "name": "ProfilerStep#1", "ts": 0, "dur": 20_000},
            {**common, "name": "dataloader", "ts": 10, "dur": 1_000},
            {**common, "name": "## backward ##", "ts": 2_000, "dur": backward_ms * 1000},
            {**common, "name": "Optimizer.step#Adam.step", "ts": 15_000, "dur": 2_000},
        ]
        path = tmp_path / f"{number}.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
        captures.append(MeasuredTrace(path))
    found = {growth.name: growth.cost_ns for growth in phase_growths(*captures)}
    assert found == {"backward": 3e6, "rest": -3e6}


def test_parts_of_the_step_that_grew_are_named(tmp_path: Path) -> None:
    """A device that communicates 6 ms longer is idle for so much less; computing is as before."""
    common = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "args": {"device": 0, "stream": 7}}
    step = {**common, "name": "ProfilerStep#1", "cat": "user_annotation", "pid": 1, "ts": 0}
    captures = []
    for number, reduced_ms in enumerate((5, 11)):
        events = [
            {**step, "dur": 30_000},
            {**common, "name": "gemm", "ts": 1_000, "dur": 8_000},
            {**common, "name": "ncclDevKernel_AllReduce", "ts": 10_000, "dur": reduced_ms * 1000},
        ]
        path = tmp_path / f"{number}.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
        captures.append(MeasuredTrace(path))
    found = [(one.name, one.where, one.cost_ns) for one in part_growths(*captures)]
    assert found == [("communication", "step", 6e6), ("idle", "step", -6e6)]


def test_what_lies_outside_of_the_steps_is_not_theirs(tmp_path: Path) -> None:
    """The second capture goes on after its last step: a step costs no more for that."""
    captures = []
    for number in range(2):
        path = write(tmp_path / f"{number}.trace.json", 2, 1, 1)
        trace = json.loads(path.read_text())
        after = {**trace["traceEvents"][-1], "ts": 10**9}
        trace["traceEvents"] += [
            {**after, "ts": after["ts"] + 10**6 * n} for n in range(9 * number)
        ]
        path.write_text(json.dumps(trace))
        captures.append(MeasuredTrace(path))
    assert growths(*captures) == []


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    """Frames in one of them, a device in the other."""
    one = MeasuredTrace(write(tmp_path / "a.trace.json", 2, 1, 1, cat="python_function"))
    other = MeasuredTrace(write(tmp_path / "b.trace.json", 2, 1, 1, cat="kernel"))
    assert why_not_comparable(one, other) == [
        "only the first has the host's Python frames",
        "only the second has a device",
    ]


def test_phases_of_one_alone_are_no_faster_job(tmp_path: Path) -> None:
    """Where marks of other domains were asked for, the optimizer ran unseen."""
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "mstx", "args": {"domain": "phases"}}
    captures = []
    for name in ("optimizer", "something else"):
        events = [
            {**common, "name": "ProfilerStep#1", "cat": "user_annotation", "ts": 0, "dur": 20_000},
            {**common, "name": name, "ts": 10, "dur": 1_000},
        ]
        path = tmp_path / f"{name}.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
        captures.append(MeasuredTrace(path))
    assert why_not_comparable(*captures) == ["only the first has phases of the host"]
    assert why_not_comparable(captures[0], captures[0]) == []

"""Comparison of two captures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import (
    KERNEL,
    OPERATOR,
    PART,
    PHASE,
    MeanStep,
    growths,
    why_not_comparable,
)
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.step_traces import write

if TYPE_CHECKING:
    from pathlib import Path


def read(path: Path) -> MeanStep:
    """Return the measurements of a trace's step."""
    return MeanStep.of(MeasuredTrace(path))


def test_growth_is_named_by_its_cost_of_a_step(tmp_path: Path) -> None:
    """Windows of different lengths are compared by step; unchanged parts are left out."""
    one = read(write(tmp_path / "a.trace.json", steps=2, products=3, ms=10))
    other = read(write(tmp_path / "b.trace.json", steps=5, products=4, ms=20))
    first, *rest = growths(one, other, OPERATOR)
    assert (first.name, first.by, first.count) == ("aten::mm", OPERATOR, (3, 4))
    assert first.time_ns == (30e6, 80e6)
    assert first.cost_ns == 50e6
    assert rest == []
    assert why_not_comparable(one, other) == []


def test_phases_that_grew_are_named(tmp_path: Path) -> None:
    """Labels show the phases: the backward pass takes 3 ms more of a step of equal length."""
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
        captures.append(read(path))
    found = {growth.name: growth.cost_ns for growth in growths(captures[0], captures[1], PHASE)}
    assert found == {"backward": 3e6, "rest": -3e6}


def test_parts_of_the_step_that_grew_are_named(tmp_path: Path) -> None:
    """A device that communicates 6 ms longer is idle 6 ms less; computing is unchanged."""
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
        captures.append(read(path))
    found = [(one.name, one.by, one.cost_ns) for one in growths(captures[0], captures[1], PART)]
    assert found == [("communication", PART, 6e6), ("idle", PART, -6e6)]


def test_events_outside_steps_do_not_count(tmp_path: Path) -> None:
    """The second capture continues after its last step: its steps cost no more for that."""
    captures = []
    for number in range(2):
        path = write(tmp_path / f"{number}.trace.json", 2, 1, 1)
        trace = json.loads(path.read_text())
        after = {**trace["traceEvents"][-1], "ts": 10**9}
        trace["traceEvents"] += [
            {**after, "ts": after["ts"] + 10**6 * n} for n in range(9 * number)
        ]
        path.write_text(json.dumps(trace))
        captures.append(read(path))
    assert growths(captures[0], captures[1], OPERATOR) == []


def test_captures_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    """One capture has frames, the other a device."""
    one = read(write(tmp_path / "a.trace.json", 2, 1, 1, cat="python_function"))
    other = read(write(tmp_path / "b.trace.json", 2, 1, 1, cat="kernel"))
    assert why_not_comparable(one, other) == [
        "only the first has the host's Python frames",
        "only the second has a device",
    ]


def test_a_phase_in_one_capture_only_is_not_compared(tmp_path: Path) -> None:
    """If other domains' marks were requested, the optimizer's phase was not recorded."""
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "mstx", "args": {"domain": "phases"}}
    captures = []
    for name in ("optimizer", "something else"):
        events = [
            {**common, "name": "ProfilerStep#1", "cat": "user_annotation", "ts": 0, "dur": 20_000},
            {**common, "name": name, "ts": 10, "dur": 1_000},
        ]
        path = tmp_path / f"{name}.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
        captures.append(read(path))
    assert why_not_comparable(*captures) == ["only the first has phases of the host"]
    assert why_not_comparable(captures[0], captures[0]) == []


def test_ranges_that_differ_by_a_number_are_joined(tmp_path: Path) -> None:
    """Two captures never have the same numbers; a suffix behind the name is not a number."""
    captures = []
    for first, ms in ((3, 4), (700, 9)):
        common = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation"}
        events = [
            {**common, "name": name, "ts": 20_000 * n + since, "dur": dur}
            for n in range(2)
            for name, since, dur in (
                (f"ProfilerStep#{first + n}", 0, 20_000), (f"iteration#{first + n}", 10, ms * 1000),
                ("Optimizer.step#SGD.step", 15_000, 1000), ("#5", 17_000, 1000),
            )
        ]  # fmt: skip
        path = tmp_path / f"{first}.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
        captures.append(read(path))
    assert set(captures[0].tables[OPERATOR]) == {"iteration#*", "Optimizer.step#SGD.step", "#5"}
    (grown,) = growths(captures[0], captures[1], OPERATOR)
    assert (grown.name, grown.count, grown.time_ns) == ("iteration#*", (1, 1), (4e6, 9e6))


def test_the_mean_of_ranks_is_that_of_each_number(tmp_path: Path) -> None:
    """Counted by hand: 2 products of 10 ms on one rank, 4 of 30 ms on the other."""
    ranks = [
        read(write(tmp_path / f"{n}.trace.json", 2, products, ms))
        for n, products, ms in ((0, 2, 10), (1, 4, 30))
    ]
    mean = MeanStep.of_ranks(ranks)
    assert mean.tables[OPERATOR] == {"aten::mm": (3, 70e6), "aten::add": (1, 10e3)}
    assert mean.whole_ns == (ranks[0].whole_ns + ranks[1].whole_ns) / 2
    for name, (_, time) in mean.tables[PART].items():
        assert time == sum(rank.tables[PART][name][1] for rank in ranks) / 2
    assert MeanStep.of_ranks([ranks[0]]) == ranks[0]


def test_work_of_one_rank_counts_zero_for_the_others(tmp_path: Path) -> None:
    """One of two ranks runs a kernel of 8 us: half a kernel and 4 us; not all have a device."""
    plain = read(write(tmp_path / "a.trace.json", 1, 1, 8))
    other = read(write(tmp_path / "b.trace.json", 1, 1, 8, cat="kernel", name="gemm", dur=8))
    mean = MeanStep.of_ranks([plain, other])
    assert mean.tables[KERNEL]["gemm"] == (0.5, 4e3)
    assert mean.tables[OPERATOR]["aten::mm"] == (1, 8e6)
    assert not mean.recorded["a device"]

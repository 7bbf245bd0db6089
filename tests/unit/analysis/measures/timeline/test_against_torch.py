"""Real GPU traces, compared with torch's ``key_averages()`` and with CUDA events."""

from __future__ import annotations

from collections import defaultdict

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import H100, raw_events, read

AVERAGES = read(H100 / "profile.averages.json.gz")
HOST = {row["key"]: row for row in AVERAGES if row["type"] == "DeviceType.CPU"}
DEVICE = {row["key"]: row for row in AVERAGES if row["type"] == "DeviceType.CUDA"}
BUFFER = "Activity Buffer Request"
"""A wait of CUPTI, which torch treats as an operator inside the open one.

torch counts a kernel launched in it twice: for the operator, and for the wait.
"""

EVENTS_MS = {33: 12.540224, 34: 11.931008}
"""Ms between the first and last CUDA event of an iteration in ``train``, by its number."""


@pytest.fixture(scope="module")
def measured() -> MeasuredTrace:
    """Read the trace."""
    return MeasuredTrace(H100 / "profile.json.gz")


def test_operators_match_torchs_counts_and_times(measured: MeasuredTrace) -> None:
    """Count, total time and both device times match; only torch has rows of calls."""
    ours = {row.name: row for row in measured.averages}
    assert {name for name in HOST if not name.startswith("cu")} - set(ours) == {BUFFER}
    twice = HOST[BUFFER]["self_device_time_total"]
    for name, row in ours.items():
        torchs = HOST[name]
        assert row.count == torchs["count"], name
        assert row.total_ns / 1000 == pytest.approx(torchs["cpu_time_total"], abs=0.01), name
        self_us = torchs["self_device_time_total"]
        assert row.device_self_ns / 1000 == pytest.approx(self_us, abs=0.01), name
        more = torchs["device_time_total"] - row.device_total_ns / 1000
        assert more == pytest.approx(0, abs=0.01) or more == pytest.approx(twice, abs=0.01), name
    assert measured.operators.device_unknown == 0


def test_self_times_include_runtime_calls(measured: MeasuredTrace) -> None:
    """Torch subtracts CUDA's calls and CUPTI's wait from the operator around them."""
    events = raw_events(measured.path)
    operators = [event for event in events if event["cat"] in ("cpu_op", "user_annotation")]
    taken = defaultdict[str, float](float)
    for call in events:
        if call["cat"] in ("cuda_runtime", "cuda_driver", "overhead"):
            around = [one for one in operators
                      if one["ts"] < call["ts"] < one["ts"] + one["dur"]
                      and (one["tid"] == call["tid"] or call["cat"] == "overhead")]  # fmt: skip
            if around:
                taken[min(around, key=lambda one: one["dur"])["name"]] += call["dur"]
    for row in measured.averages:
        torchs = HOST[row.name]["self_cpu_time_total"] + taken[row.name]
        assert row.self_ns / 1000 == pytest.approx(torchs, abs=0.01), row.name


def test_kernels_match_torchs_counts_and_times(measured: MeasuredTrace) -> None:
    """Kernels, copies and memsets match by name; only torch has a row for the optimizer's label."""
    found = defaultdict[str, list[int]](list)
    for work in measured.launches.work.tolist():
        found[measured.trace.name(work)].append(int(measured.trace.spans["length"][work]))
    assert set(DEVICE) - set(found) == {"Optimizer.step#AdamW.step"}
    for name, times in found.items():
        assert len(times) == DEVICE[name]["count"], name
        torchs = DEVICE[name]["self_device_time_total"]
        assert sum(times) / 1000 == pytest.approx(torchs, abs=0.01), name


def test_flops_are_torchs(measured: MeasuredTrace) -> None:
    """FLOPs match where torch counts any; a ``mul`` inside a counted operator is part of it."""
    ours = defaultdict[str, int](int)
    for work in measured.operator_work:
        ours[work.name] += work.count * (work.flops or 0)
    torchs = {name: row["flops"] for name, row in HOST.items() if row["flops"]}
    inner = 3 * 32 * 128 * 256
    assert torchs.pop("aten::mul") == ours["aten::mul"] + inner
    assert torchs == {name: ours[name] for name in torchs}
    assert set(torchs) == {"aten::addmm", "aten::mm", "aten::add"}


def test_steps_match_cuda_events() -> None:
    """A step computes between its events, from its first kernel to its last.

    Before it the host reaches the launch. After it are a copy of four bytes and the host's
    ``item()``.
    """
    measured = MeasuredTrace(H100 / "train.json.gz")
    trace = measured.trace
    records = trace.spans["start"][trace.named(lambda name: name == "cudaEventRecordWithFlags")]
    assert [step.number for step in measured.steps] == list(EVENTS_MS)
    for step in measured.steps:
        inside = records[(records >= step.begin) & (records < step.begin + step.length)]
        first, last = int(inside.min()), int(inside.max())
        assert (last - first) / 1e6 == pytest.approx(EVENTS_MS[step.number or 0], abs=0.02)
        begin = step.begin + step.preparing
        assert first < begin < begin + step.stage < last
        assert step.stage / 1e6 == pytest.approx(EVENTS_MS[step.number or 0], abs=0.5)

"""Categories, modules and operators with shapes of a mean step, as plain loops count them."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.difference import (
    CATEGORY,
    DEVICE,
    KERNEL,
    MODULE,
    NO_MODULE,
    NO_OPERATOR,
    OPERATOR,
    PART,
    SHAPES,
    SUBJECTS,
    WITH_SHAPES,
    MeanStep,
    StepChange,
    growths,
    why_not_by,
)
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.kernels import category_of
from dynprof.analysis.reading.spans import ROOT
from dynprof.cli.diff import By
from tests.real_traces import H100, REAL, everything, needs_real
from tests.unit.analysis.plain_launchers import ANY, CALLS, ON_DEVICE, Event, launchers
from tests.unit.analysis.random_models import random_model
from tests.unit.analysis.random_traces import random_trace

if TYPE_CHECKING:
    from pathlib import Path

TWO_DEVICES = ("a100_control", "v100_test")
"""Real traces of one model on two devices."""


def in_steps(events: list[Event]) -> tuple[set[int], int]:
    """Return the ids of the device work that was launched in a step, and the number of steps.

    If steps are marked, work without a launch counts only after work of its stream that has one.
    """
    marks = [e for e in events if e["kind"] == "user_annotation"]
    steps = {(e["begin"], e["end"]) for e in marks if e["name"].startswith("ProfilerStep#")}
    calls = {e["args"]["correlation"]: e["begin"] for e in reversed(events)
             if e["kind"] in CALLS and "correlation" in e.get("args", {})}  # fmt: skip
    activities = [e for e in events if e["kind"] in ON_DEVICE and e.get("ph") == "X"]
    found, recorded = set(), set[Any]()
    for event in sorted(activities, key=lambda event: event["begin"]):
        args = event["args"]
        launched, stream = args["correlation"] in calls, (args["device"], args["stream"])
        recorded |= {stream} if launched else set()
        when = calls.get(args["correlation"], event["begin"])
        if not steps or (stream in recorded and any(begin <= when < end for begin, end in steps)):
            found.add(id(event))
    return found, max(1, len(steps))


def by_operator(events: list[Event]) -> tuple[dict[str, int], dict[str, int]]:
    """Return device time in steps by operator with shapes, and by category without communication.

    Operators that repeat their parent have no shapes here.
    """
    counted, _ = in_steps(events)
    shapes, categories = defaultdict[str, int](int), defaultdict[str, int](int)
    for work, by in launchers(events):
        if id(work) not in counted:
            continue
        took = work["end"] - work["begin"]
        name, args = (by["name"], by.get("args", {})) if by else ("", {})
        dims = args.get("Input Dims", args.get("Input dims"))
        text = "" if dims is None else f" {json.dumps(dims)}"
        is_step = not name or name.startswith("ProfilerStep#")
        shapes[NO_OPERATOR if is_step else ANY if dims == ANY else f"{name}{text}"] += took
        kind = {"gpu_memcpy": "copy", "gpu_memset": "memset"}.get(work["kind"])
        categories[kind or category_of(work["name"], name)] += took
    return shapes, categories


def check(path: Path) -> MeanStep:
    """Compare categories, shapes and kernels with plain counts."""
    events, found = everything(path), MeanStep.of(MeasuredTrace(path))
    counted, steps = in_steps(events)
    whole = sum(e["end"] - e["begin"] for e in events if id(e) in counted) / steps
    with_modules = [MODULE] if found.tables[MODULE] else []
    for subject in (CATEGORY, SHAPES, KERNEL, *with_modules):
        total = sum(time for _, time in found.tables[subject].values())
        assert total == pytest.approx(whole), subject
    shapes, categories = by_operator(events)
    ours = found.tables[SHAPES]
    repeated = shapes.pop(ANY, 0) / steps
    assert sum(abs(time - shapes.get(name, 0) / steps) for name, (_, time) in ours.items()) == (
        pytest.approx(repeated, abs=1)
    )
    assert all(name in ours for name in shapes)
    ours = found.tables[CATEGORY]
    compared = categories.keys() - {"communication", "copy"}  # some copies communicate
    assert compared <= ours.keys() <= categories.keys()
    if "communication" not in ours:
        assert {name: time for name, (_, time) in ours.items()} == pytest.approx(
            {name: time / steps for name, time in categories.items()}
        )
    return found


@pytest.mark.parametrize("seed", range(4))
def test_device_time_of_a_step_in_random_traces(tmp_path: Path, seed: int) -> None:
    """Each activity counts once, where it was launched."""
    check(random_trace(tmp_path, seed))


@pytest.mark.parametrize("name", ["train", "graph", "compiled"])
def test_device_time_of_a_step_on_an_h100(name: str) -> None:
    """With graphs, fused kernels and copies on a side stream."""
    check(H100 / f"{name}.json.gz")


@needs_real
def test_two_devices_are_compared() -> None:
    """The same model on two devices shares categories and labels, and few names of kernels."""
    paths = [REAL / f"{name}.json.gz" for name in TWO_DEVICES]
    if not all(path.exists() for path in paths):
        pytest.skip("there is no folder of real GPU traces")
    one, other = map(check, paths)
    for subject in SUBJECTS:
        costs = {row.name: row.cost_ns for row in growths(one, other, subject)}
        back = {row.name: -row.cost_ns for row in growths(other, one, subject)}
        assert costs == back != {}
        assert growths(one, one, subject) == []
    shared = one.tables[CATEGORY].keys() & other.tables[CATEGORY].keys()
    assert {"GEMM", "copy", "communication", "embedding and indexing"} <= shared
    assert "## forward ##/## forward:over_arch ##" in one.tables[MODULE]
    assert not why_not_by(one, other, MODULE)


@pytest.mark.parametrize("frames", [True, False], ids=["modules", "labels"])
@pytest.mark.parametrize("seed", range(3))
def test_modules_of_a_step(tmp_path: Path, seed: int, frames: bool) -> None:
    """Modules run in steps only, so times are those of the whole tree, forward and backward."""
    measured = MeasuredTrace(random_model(tmp_path, seed, frames=frames))
    steps, tree, paths = len(measured.marked), measured.modules, list[str]()
    device, host = defaultdict[str, float](float), defaultdict[str, float](float)
    for row in tree.rows:
        paths.append(row.name if row.parent == ROOT else f"{paths[row.parent]}/{row.name}")
        amounts = row.forward + row.backward
        device[paths[-1]] += amounts.device / steps
        host[paths[-1]] += amounts.host / steps
    events = everything(measured.path)
    counted, _ = in_steps(events)
    whole = sum(e["end"] - e["begin"] for e in events if id(e) in counted) / steps
    device[NO_MODULE] = whole - sum(device.values())
    found = MeanStep.of(measured).tables
    for subject, expected in ((MODULE, device), ("module on the host", host)):
        ours = {name: time for name, (_, time) in found[subject].items()}
        assert ours == pytest.approx(expected)
        assert any(ours.values())


HOST = {"ph": "X", "pid": 1, "tid": 1}


def built(path: Path, mm_us: int, *, steps: int = 2, **left: Any) -> MeanStep:
    """Return steps of a product and a sum in a module; before them, the same is launched once."""
    events: list[Event] = []
    for number in range(-1, steps):
        at = 1000 * (number + 1)
        if number >= 0:
            events.append({**HOST, "cat": "user_annotation", "name": f"ProfilerStep#{number}",
                           "ts": at, "dur": 900})  # fmt: skip
        frame = "nn.Module: Linear_0" if left.get("modules", True) else "train.py(1): f"
        events.append({**HOST, "cat": "python_function", "name": frame, "ts": at + 1, "dur": 100})
        launched = ("aten::mm", "sgemm", mm_us), ("aten::sum", "reduce_kernel", 7)
        for place, (name, kernel, took) in enumerate(launched):
            begin, args = at + 10 + 40 * place, {"Input Dims": [[8, 4], [4, 2]]}
            link = {"correlation": 10 * (number + 2) + place}
            events += [
                {**HOST, "cat": "cpu_op", "name": name, "ts": begin, "dur": 30,
                 "args": args if left.get("shapes", True) else {}},
                {**HOST, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 1,
                 "dur": 2, "args": link},
            ]  # fmt: skip
            if left.get("device", True):
                events.append({"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": kernel,
                               "ts": begin + 5, "dur": took,
                               "args": {**link, "device": 0, "stream": 7}})  # fmt: skip
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return MeanStep.of(MeasuredTrace(path))


def test_each_subject_of_a_step(tmp_path: Path) -> None:
    """Counted by hand, without what was launched before the first step."""
    one, other = (built(tmp_path / f"{us}.trace.json", us) for us in (10, 25))
    assert one.tables[CATEGORY] == {"GEMM": (1, 10e3), "reduction": (1, 7e3)}
    assert one.tables[MODULE] == {"Linear_0": (1, 17e3)}
    shapes = {"aten::mm [[8, 4], [4, 2]]": (1, 10e3), "aten::sum [[8, 4], [4, 2]]": (1, 7e3)}
    assert one.tables[SHAPES] == shapes
    for subject, name in ((CATEGORY, "GEMM"), (MODULE, "Linear_0"), (KERNEL, "sgemm"),
                          (SHAPES, "aten::mm [[8, 4], [4, 2]]")):  # fmt: skip
        (row,) = growths(one, other, subject)
        assert (row.name, row.by, row.count, row.cost_ns) == (name, subject, (1, 1), 15e3)


@pytest.mark.parametrize(
    ("lacks", "subject", "names", "remark"),
    [
        ("shapes", SHAPES, ["aten::mm"],
         "by shapes: only the first has shapes of operators; names without shapes are compared"),
        ("device", SHAPES, [], "by shapes: not compared, because only the first has a device"),
        ("device", CATEGORY, [], "by category: not compared, because only the first has a device"),
        ("device", KERNEL, [], "by kernel: not compared, because only the first has a device"),
        ("device", MODULE, [],
         "by module: only the first has a device; times on the host are compared"),
        ("modules", MODULE, [],
         "by module: not compared, because only the first has modules"),
    ],
)  # fmt: skip
def test_what_one_side_lacks_is_said(
    tmp_path: Path, lacks: str, subject: str, names: list[str], remark: str
) -> None:
    """Rows that would only show that something was not recorded are left out."""
    one = built(tmp_path / "a.trace.json", 10)
    other = built(tmp_path / "b.trace.json", 20, **{lacks: False})
    assert [row.name for row in growths(one, other, subject)] == names
    assert why_not_by(one, other, subject) == remark
    swapped = remark.replace("only the first", "only the second")
    assert why_not_by(other, one, subject) == swapped


def test_what_both_sides_lack_is_said_on_request(tmp_path: Path) -> None:
    """A table that the user requested is not empty without a reason."""
    lacking = built(tmp_path / "a.trace.json", 10, device=False, shapes=False)
    assert why_not_by(lacking, lacking, CATEGORY) == ""
    assert why_not_by(lacking, lacking, CATEGORY, requested=True) == (
        "by category: neither has a device"
    )
    without = replace(lacking, recorded={**lacking.recorded, DEVICE: True, WITH_SHAPES: False})
    assert "neither has shapes" in why_not_by(without, without, SHAPES, requested=True)
    assert why_not_by(lacking, lacking, OPERATOR, requested=True) == ""


def test_the_median_step_decides() -> None:
    """One long step of six changes the mean by half, and the median not at all."""
    steady = (10.0, 10.1, 9.9, 10.0, 10.2, 9.8)
    one = MeanStep("a step", steady, 10.0, {}, of_labels=True, recorded={})
    change = StepChange.of(one, replace(one, lengths=(*steady[:5], 40.0)))
    assert change is not None
    assert change.share == pytest.approx(0.005)
    assert change.variation == pytest.approx((0.01, 0.1 / 10.05), abs=1e-9)
    assert change.steps == (6, 6)
    single = StepChange.of(one, replace(one, lengths=(12.0,)))
    assert single is not None
    assert single.share == pytest.approx(0.2)
    assert single.variation[1] is None
    assert StepChange.of(replace(one, lengths=()), one) is None
    assert StepChange.of(replace(one, lengths=(0.0,)), one) is None


def test_steps_of_a_device_that_is_behind_are_its_own(tmp_path: Path) -> None:
    """The host launches a step in 0.1 ms; the device works 5, 6 and 9 ms for them."""
    events: list[Event] = []
    free = 50
    for number, took in enumerate((5000, 6000, 9000)):
        ts, link = 100 * number, {"correlation": number + 1}
        events += [
            {**HOST, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": ts,
             "dur": 100},
            {**HOST, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": ts + 10, "dur": 5,
             "args": link},
            {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "k", "ts": free,
             "dur": took, "args": {**link, "device": 0, "stream": 7}},
        ]  # fmt: skip
        free += took
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    step = MeanStep.of(MeasuredTrace(path))
    assert step.lengths == (5e6, 6e6, 9e6)
    assert step.whole_ns == pytest.approx(20e6 / 3)
    assert sum(time for _, time in step.tables[PART].values()) == pytest.approx(step.whole_ns)


def test_the_command_offers_the_subjects_of_the_analysis() -> None:
    """The command lists them itself, so that its help loads no analysis."""
    assert tuple(By) == SUBJECTS

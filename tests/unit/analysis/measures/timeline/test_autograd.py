"""What is backward, and what runs forward again inside it, as plain loops count it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.phase_times import recomputed
from dynprof.analysis.reading.spans import ROOT
from tests.real_traces import REAL, everything, on_each
from tests.unit.analysis.measures.numbered import (
    GRAPH,
    ON_DEVICE,
    Event,
    operator,
    run_again,
    write,
)

if TYPE_CHECKING:
    from pathlib import Path

CHECKPOINTED = REAL / "resnet_act_checkpoint_mi300.json.gz"


def launched(kernel: str, at: int, lasts: int, number: int, thread: int = 1) -> list[Event]:
    """Return a launch of 10 us and its kernel, which begins 20 us later."""
    ids = {"correlation": number, "device": 0, "stream": 7}
    return [
        {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": at, "dur": 10, "tid": thread,
         "args": {"correlation": number}},
        {"name": kernel, "cat": "kernel", "ts": at + 20, "dur": lasts, "tid": 7, "args": ids},
    ]  # fmt: skip


def frame(name: str, ts: int, dur: int, thread: int = 1) -> Event:
    """Return the frame of a module."""
    name = f"nn.Module: {name}"
    return {"name": name, "cat": "python_function", "ts": ts, "dur": dur, "tid": thread}


def backward(node: str, ts: int, dur: int, sequence: int) -> list[Event]:
    """Return a node and the engine's call of it, on the engine's thread."""
    return [
        operator(f"{GRAPH}: {node}", ts, dur, sequence, thread=2),
        operator(node, ts + 1, dur - 2, sequence, thread=2),
    ]


STEP: Event = {"name": "ProfilerStep#1", "cat": "user_annotation", "ts": 0, "dur": 10_000}


def plain(name: str, ts: int, dur: int) -> Event:
    """Return an operator without a sequence number, on the engine's thread."""
    return {"name": name, "cat": "cpu_op", "ts": ts, "dur": dur, "tid": 2}


def checkpointed(*, stacks: bool) -> list[Event]:
    """Return a step whose linear layer runs again inside the backward pass of its ReLU."""
    modules = [frame("Block_0", 10, 900), frame("Linear_0", 20, 300), frame("ReLU_0", 400, 100),
               frame("Linear_0", 2010, 500, thread=2)]  # fmt: skip
    return [
        STEP, *(modules if stacks else []),
        operator("aten::addmm", 30, 200, 1), *launched("gemm", 40, 100, 1),
        operator("aten::relu", 410, 80, 2), *launched("relu", 420, 10, 2),
        *backward("ReluBackward0", 2000, 2000, 2),
        operator("aten::addmm", 2020, 400, 3, thread=2), *launched("gemm", 2030, 600, 3, 2),
        plain("aten::threshold_backward", 3000, 100), *launched("relu_bwd", 3010, 10, 4, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("stacks", [True, False])
def test_recomputation_is_a_phase_a_row_and_a_finding(tmp_path: Path, *, stacks: bool) -> None:
    """With stacks it is the module that is called again, without them its operators."""
    measured = write(tmp_path / "a.pt.trace.json", checkpointed(stacks=stacks))
    (phases,) = measured.phases
    again = 500_000 if stacks else 400_000
    assert (phases["recomputation"], phases["backward"]) == (again, 2_000_000 - again)
    rows = {(row.name, row.parent == ROOT): row for row in measured.modules.rows}
    row = rows["recomputation", True]
    assert (row.calls, row.forward_total.host, row.forward_total.device) == (1, again, 600_000)
    if stacks:
        relu = rows["ReLU_0", False]
        assert (relu.forward_total.device, relu.backward_total.device) == (10_000, 10_000)
        assert relu.backward_total.host == 1_500_000
    times = {one.node: (one.host, one.device) for one in measured.passes}
    assert times["recomputation"] == (again, 600_000)
    assert times["ReluBackward0"] == (2_000_000 - again, 10_000)
    from dynprof.analysis.findings.rules import all_findings

    (found,) = (one for one in all_findings(measured, least=0) if "computed again" in one.title)
    assert found.share == pytest.approx(0.06)
    assert "again for 0.6 ms of a step on the device" in found.detail


def test_gradients_of_gradients_are_not_recomputed(tmp_path: Path) -> None:
    """With create_graph=True the operators of the gradient's own formula have numbers too."""
    events = [STEP, operator("aten::mul", 30, 200, 1), *backward("MulBackward0", 2000, 2000, 1),
              operator("aten::mul", 2020, 400, 2, thread=2)]  # fmt: skip
    measured = write(tmp_path / "a.pt.trace.json", events)
    assert not recomputed(measured.trace).any()
    assert measured.phases[0]["backward"] == 2_000_000


def test_a_backward_formula_that_differentiates_is_not_recomputed(tmp_path: Path) -> None:
    """An implicit layer or an adjoint: a product that ran nowhere before, next to one that did."""
    formula = [
        operator("aten::matmul", 2020, 400, 3, thread=2),
        operator("aten::mm", 2030, 380, 3, thread=2),
        operator("aten::sum", 2500, 100, 4, thread=2), plain("aten::ones_like", 3000, 100),
    ]  # fmt: skip
    forward = [STEP, operator("aten::mul", 30, 200, 1), operator("aten::sum", 300, 200, 2)]
    events = [*forward, *backward("FBackward", 2000, 2000, 1), *formula]
    measured = write(tmp_path / "a.pt.trace.json", events)
    assert not recomputed(measured.trace).any()
    assert measured.phases[0]["backward"] == 2_000_000
    ran_before = [operator("aten::matmul", 600, 100, 1), *events]
    assert recomputed(write(tmp_path / "b.pt.trace.json", ran_before).trace).any()


def test_time_inside_a_numbered_backward_operator_is_backward(tmp_path: Path) -> None:
    """The device waits for it; neither phase nor finding calls that time forward."""
    events = [STEP, operator("aten::addmm", 20, 180, 5), *launched("gemm", 30, 500, 1),
              *backward("AddmmBackward0", 300, 9000, 5),
              *launched("gemm", 9200, 100, 2, 2)]  # fmt: skip
    measured = write(tmp_path / "a.pt.trace.json", events)
    assert (measured.phases[0]["forward"], measured.phases[0]["backward"]) == (180_000, 9_000_000)
    from dynprof.analysis.findings.rules import all_findings

    every = all_findings(measured, least=0)  # the main thread seems to be busy for as long
    (found,) = (one for one in every if one.title.startswith("The device waits"))
    assert "8.66 ms in backward" in found.detail
    assert "in forward" not in found.detail


@on_each
def test_plain_loops_find_the_same_recomputation(path: Path) -> None:
    """By start and name."""
    compare(path)


@pytest.mark.skipif(not CHECKPOINTED.exists(), reason="there is no folder of real GPU traces")
def test_recomputation_of_a_real_job(tmp_path: Path) -> None:
    """All convolutions but three run twice, and cost the device what their kernels take."""
    del tmp_path
    assert compare(CHECKPOINTED) == 645
    events, measured = everything(CHECKPOINTED), MeasuredTrace(CHECKPOINTED)
    spans, calls = run_again(events), {}
    for event in events:
        if event["kind"] == "cuda_runtime" and any(
            one["thread"] == event["thread"] and one["begin"] <= event["begin"] < one["end"]
            for one in spans
        ):
            calls[event["args"]["correlation"]] = event
    work = [e for e in events if e["kind"] in ON_DEVICE
            and e["args"].get("correlation") in calls]  # fmt: skip
    (root,) = (row for row in measured.modules.rows if row.name == "recomputation")
    assert root.forward_total.device == sum(e["end"] - e["begin"] for e in work) > 4_000_000


def compare(path: Path) -> int:
    """Compare with plain loops; return how many spans run again."""
    trace = MeasuredTrace(path).trace
    place = np.flatnonzero(recomputed(trace))
    events = everything(path)
    shift = min(e["begin"] for e in events if e.get("ph") == "X") - int(trace.spans["start"].min())
    ours = sorted(
        (int(trace.spans["start"][one]) + shift, trace.name(one)) for one in place.tolist()
    )
    assert ours == sorted((one["begin"], one["name"]) for one in run_again(events))
    return len(ours)


def test_a_guessed_forward_pass_is_called_that(tmp_path: Path) -> None:
    """Only operators suggest it here; a label shows it."""
    events = [STEP, operator("aten::mul", 30, 200, 1), *backward("MulBackward0", 2000, 2000, 1)]
    guess = "(guessed from operators)"
    assert guess in str(write(tmp_path / "a.pt.trace.json", events).breakdown)
    label = {**plain("forward", 20, 300), "cat": "user_annotation"}
    assert guess not in str(write(tmp_path / "b.pt.trace.json", [*events, label]).breakdown)

"""The forward pass where nothing labels it and autograd numbers nothing; labels of torch 1.8."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis import load
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.real_traces import REAL, everything
from tests.unit.analysis.made_jobs import ENGINE, MAIN, STEP, Job

if TYPE_CHECKING:
    from pathlib import Path

OLD = "Operator"
"""The category that torch 1.8 gives operators and labels."""


@pytest.mark.parametrize("category", [OLD, "cpu_op"])
@pytest.mark.parametrize("seed", range(6))
def test_forward_is_what_operators_of_the_steps_thread_run(
    tmp_path: Path, category: str, seed: int
) -> None:
    """Backward has a thread and no numbers. Each microsecond is counted as it is added."""
    dice, job, expected = random.Random(seed), Job(), dict.fromkeys(PHASES, 0)  # noqa: S311
    for number in range(3):
        job.host(f"ProfilerStep#{number}", number * STEP, STEP, category)
        at = number * STEP
        for _ in range(dice.randint(2, 12)):
            name, phase, thread = dice.choice(KINDS)
            took = dice.randint(2, 40)
            job.host(name, at, took, category, thread)
            if name.startswith("aten::conv2d"):
                job.host("aten::cudnn_convolution", at, took / 2, category, thread)
            expected[phase] += 1000 * took
            at += took + dice.randint(0, 30)
    job.host("aten::conv2d", 2 * STEP + 990, 5, category)
    expected["forward"] += 5000
    expected["rest"] = 3 * STEP * 1000 - sum(expected[phase] for phase in PHASES[:-1])
    found = job.measured(tmp_path).phases
    assert {phase: sum(step[phase] for step in found) for phase in PHASES} == expected


PHASES = ("forward", "backward", "optimizer", "data loading", "rest")
KINDS = (
    ("aten::conv2d", "forward", MAIN),
    ("aten::relu_", "forward", MAIN),
    ("CudnnConvolutionBackward", "backward", ENGINE),
    ("Optimizer.step#SGD.step", "optimizer", MAIN),
    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "data loading", MAIN),
    ("aten::zero_", "rest", MAIN),
    ("aten::conv2d of another", "rest", ENGINE),
)


def test_an_evaluation_loop_has_a_forward_pass_only(tmp_path: Path) -> None:
    """No backward pass visits its operators; a loop without a layer of a network has none."""
    for name, forward in (("aten::linear", 300), ("aten::sort", 0)):
        job = Job()
        job.step()
        job.host(name, 100, 200)
        job.host("aten::argmax", 400, 100)
        (phases,) = job.measured(tmp_path).phases
        assert phases == {
            **dict.fromkeys(phases, 0),
            "forward": 1000 * forward,
            "rest": 1000 * (STEP - forward),
        }


def test_labels_of_steps_that_are_operators_are_labels(tmp_path: Path) -> None:
    """No row of the operators is a step, nor is the device idle because of one."""
    job = Job()
    for number in range(2):
        job.host(f"ProfilerStep#{number}", number * STEP, STEP, OLD)
        job.host("aten::mm", number * STEP + 10, 400, OLD)
        job.launch("gemm", number * STEP + 200, number * STEP + 300, 100)
    found = load(job.measured(tmp_path).path)
    assert list(found.query("SELECT DISTINCT name FROM operators").rows()) == [("aten::mm",)]
    rows = found.query("SELECT DISTINCT host_operator FROM idle").rows()
    assert set(rows) == {("aten::mm",), (None,)}
    assert list(found.query("SELECT DISTINCT step FROM steps ORDER BY 1").rows()) == [(0,), (1,)]


def test_the_forward_pass_of_torch_1_8() -> None:
    """The time in operators of the main thread, without labels and resets, over the raw events."""
    path = REAL / "torch_1.8.json.gz"
    if not path.exists():
        pytest.skip("there is no folder of real GPU traces")
    events = [event for event in everything(path) if event["kind"] == "operator"]
    steps = [event for event in events if event["name"].startswith("ProfilerStep#")]
    expected = []
    for step in steps:
        inside = [event for event in events if event["thread"] == step["thread"]
                  and step["begin"] <= event["begin"] < step["end"]]  # fmt: skip
        doing, labels = set[int](), ("Optimizer.", "enumerate(DataLoader)")
        for event in inside:
            if event["name"].startswith("aten::") and event["name"] != "aten::zero_":
                doing |= set(range(event["begin"] // 1000, event["end"] // 1000))
        for event in inside:
            if event["name"].startswith(labels):
                doing -= set(range(event["begin"] // 1000, event["end"] // 1000))
        expected.append(len(doing) * 1000)
    assert min(expected) > 10_000_000
    assert [phases["forward"] for phases in MeasuredTrace(path).phases] == expected

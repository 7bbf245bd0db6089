"""Each code sample of the Ascend PyTorch Profiler document, with ``dynprof`` for ``torch_npu``."""

from __future__ import annotations

import functools
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

import dynprof as torch_npu
from tests.integration.running import RunningJob, operators, steps_in

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")

STEPS = 4
CPU, NPU = torch_npu.profiler.ProfilerActivity.CPU, torch_npu.profiler.ProfilerActivity.NPU
NO_NPU = "NPU is left out: backend torch on this machine has CPU only"

model = torch.nn.Linear(16, 4)


@functools.cache
def _optimizer() -> Any:  # the first one loads the compiler
    return torch.optim.SGD(model.parameters(), lr=0.01)


def train_one_step() -> None:
    """Run a training step."""
    _optimizer().zero_grad()
    model(torch.randn(8, 16)).square().mean().backward()
    _optimizer().step()


def traces(folder: Path) -> list[dict[str, Any]]:
    """Return the traces in a folder, the oldest first."""
    paths = sorted(folder.glob("*.pt.trace.json"), key=lambda path: path.stat().st_mtime_ns)
    return [json.loads(path.read_text()) for path in paths]


def test_a_context_with_a_schedule_and_a_handler(tmp_path: Path) -> None:
    """The first sample records step 1 alone into ``result``, for TensorBoard."""
    experimental = torch_npu.profiler._ExperimentalConfig
    with pytest.warns(UserWarning, match="aic_metrics needs Level1"):
        experimental_config = experimental(
            aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
            profiler_level=torch_npu.profiler.ProfilerLevel.Level0,
            l2_cache=False,
            data_simplification=False,
        )
    with pytest.warns(UserWarning, match=NO_NPU):
        profile = torch_npu.profiler.profile(
            activities=[CPU, NPU],
            schedule=torch_npu.profiler.schedule(
                wait=0, warmup=0, active=1, repeat=1, skip_first=1
            ),
            on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("./result"),
            record_shapes=False,
            profile_memory=False,
            with_stack=False,
            with_flops=False,
            experimental_config=experimental_config,
        )
    with profile as prof:
        for _ in range(STEPS):
            train_one_step()
            prof.step()
    (trace,) = traces(tmp_path / "result")
    assert steps_in(trace) == [1]
    assert len(operators(trace, "aten::addmm")) == 1


def test_start_and_stop_with_a_schedule(tmp_path: Path) -> None:
    """The second sample, without ``with``, records step 1 alone."""
    with pytest.warns(UserWarning, match="aic_metrics needs Level1"):
        experimental_config = torch_npu.profiler._ExperimentalConfig(
            aic_metrics=torch_npu.profiler.AiCMetrics.ArithmeticUtilization,
            profiler_level=torch_npu.profiler.ProfilerLevel.Level0,
        )
    with pytest.warns(UserWarning, match=NO_NPU):
        prof = torch_npu.profiler.profile(
            activities=[CPU, NPU],
            schedule=torch_npu.profiler.schedule(
                wait=0, warmup=0, active=1, repeat=1, skip_first=1
            ),
            on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("./result"),
            experimental_config=experimental_config,
        )
    prof.start()
    for _ in range(STEPS):
        train_one_step()
        prof.step()
    prof.stop()
    (trace,) = traces(tmp_path / "result")
    assert steps_in(trace) == [1]


def test_a_profile_without_a_schedule_exports_one_file(tmp_path: Path) -> None:
    """The sample without a schedule exports all steps at the end."""
    with torch_npu.profiler.profile() as prof:
        for _ in range(STEPS):
            train_one_step()
    prof.export_chrome_trace("./chrome_trace_14.json")
    trace = json.loads((tmp_path / "chrome_trace_14.json").read_text())
    assert steps_in(trace) == []
    assert len(operators(trace, "aten::addmm")) == STEPS


def test_a_file_for_each_process(tmp_path: Path) -> None:
    """The sample for several processes writes a file with the process id in its name."""
    with torch_npu.profiler.profile() as prof:
        train_one_step()
    pid = os.getpid()
    prof.export_chrome_trace(f"./chrome_trace_{pid}.json")
    assert (tmp_path / f"chrome_trace_{pid}.json").exists()


def test_dynamic_profile(tmp_path: Path) -> None:
    """The sample of ``dynamic_profile`` runs, and an edit captures the requested steps."""
    script = """
    import time, torch, dynprof as torch_npu
    from dynprof.profiler import dynamic_profile as dp
    dp.init("prof_config")
    while True:
        torch.ones(4, 4).mm(torch.ones(4, 4))
        time.sleep(0.002)
        dp.step()
    """
    with RunningJob(tmp_path, script) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=2)
        manifest, trace = job.capture()
    assert steps_in(trace) == [manifest.steps.first, manifest.steps.first + 1]


def test_a_kineto_profile_over_an_epoch(tmp_path: Path) -> None:
    """The sample of ``_KinetoProfile`` runs with positional arguments, until ``stop``."""
    experimental_config = torch_npu.profiler._ExperimentalConfig()
    prof = torch_npu.profiler._KinetoProfile([CPU], True, True, True, experimental_config)
    for epoch in range(3):
        train_one_step()
        if epoch == 0:
            prof.start()
        if epoch == 1:
            prof.stop()
    prof.export_chrome_trace("result_dir/trace.json")
    trace = json.loads((tmp_path / "result_dir" / "trace.json").read_text())
    (operator,) = operators(trace, "aten::addmm")
    assert operator["args"]["Input Dims"][1] == [8, 16]
    assert any(event.get("cat") == "python_function" for event in trace["traceEvents"])


def test_marks_of_the_script(tmp_path: Path) -> None:
    """The traces have the marks of the recorded steps, and no others."""
    mstx = torch_npu.npu.mstx()
    experimental_config = torch_npu.profiler._ExperimentalConfig(
        profiler_level=torch_npu.profiler.ProfilerLevel.Level0,
        msprof_tx=True,
        export_type=torch_npu.profiler.ExportType.Text,
    )
    with pytest.warns(UserWarning, match=NO_NPU):
        profile = torch_npu.profiler.profile(
            activities=[CPU, NPU],
            schedule=torch_npu.profiler.schedule(
                wait=1, warmup=1, active=2, repeat=2, skip_first=1
            ),
            on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("./result"),
            experimental_config=experimental_config,
        )
    with profile as prof:
        for _ in range(2):
            mstx.mark("train epoch start")
            for _ in range(5):
                mstx.mark("forward_start")
                train_one_step()
                mstx.mark("forward_stop")
                prof.step()
    first, second = traces(tmp_path / "result")
    assert [steps_in(first), steps_in(second)] == [[3, 4], [7, 8]]
    for trace in (first, second):
        marks = [e["name"] for e in trace["traceEvents"] if e.get("cat") == "mstx"]
        assert marks == ["forward_start", "forward_stop"] * 2


@pytest.mark.parametrize("kind", ["profile", "_KinetoProfile"])
def test_metadata(tmp_path: Path, kind: str) -> None:
    """The samples put a string and a list into the exported trace."""
    with getattr(torch_npu.profiler, kind)() as prof:
        train_one_step()
        prof.add_metadata("test_key1", "test_value1")
        prof.add_metadata_json("test_key2", [1, 2, 3])
    prof.export_chrome_trace("trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert (trace["test_key1"], trace["test_key2"]) == ("test_value1", [1, 2, 3])
    assert trace["metadata"] == {"test_key1": "test_value1", "test_key2": [1, 2, 3]}
    assert not list(tmp_path.rglob("profiler_metadata.json"))


def test_stacks_of_a_missing_device(tmp_path: Path) -> None:
    """The sample of ``export_stacks`` warns of a missing device and writes an empty file."""
    with torch_npu.profiler.profile(with_stack=True) as prof:
        train_one_step()
    with pytest.warns(UserWarning, match="stack.log is empty: no operator started anything"):
        prof.export_stacks("result_dir/stack.log", metric="self_npu_time_total")
    prof.export_stacks("result_dir/host.log")
    assert (tmp_path / "result_dir" / "stack.log").read_text() == ""
    assert "train_one_step;" in (tmp_path / "result_dir" / "host.log").read_text()


def test_one_step_between_start_and_stop(tmp_path: Path) -> None:
    """The handler gets the one step between ``start`` and ``stop``."""
    prof = torch_npu.profiler.profile(
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("./result")
    )
    for step in range(8):
        if step == 5:
            prof.start()
        train_one_step()
        if step == 5:
            prof.stop()
    (trace,) = traces(tmp_path / "result")
    assert len(operators(trace, "aten::addmm")) == 1


def test_the_vendors_own_module_of_analyse() -> None:
    """``analyse`` and ``profile`` can be imported from ``dynprof.profiler.profiler``."""
    from dynprof.profiler.profiler import analyse, profile

    assert (analyse, profile) == (torch_npu.profiler.analyse, torch_npu.profiler.profile)


def ranges(trace: dict[str, Any]) -> list[str]:
    """Return the names of the marks and ranges of the script or the plugin."""
    return [event["name"] for event in trace["traceEvents"] if event.get("cat") == "mstx"]


def test_the_plugins_sample(tmp_path: Path) -> None:
    """The sample records the second step's phases, its ``step N`` and no operator."""
    import dynprof.plugin

    dynprof.plugin.install()
    import mstx_torch_plugin  # type: ignore[import-not-found] # noqa: F401 - as the document has it

    data = torch.utils.data.TensorDataset(torch.randn(16, 16))
    loader, criterion = torch.utils.data.DataLoader(data, batch_size=4), torch.nn.MSELoss()
    with pytest.warns(UserWarning, match="mstx is switched on"):
        experimental_config = torch_npu.profiler._ExperimentalConfig(
            export_type=torch_npu.profiler.ExportType.Text,
            profiler_level=torch_npu.profiler.ProfilerLevel.Level_none,
        )
    try:
        with torch_npu.profiler.profile(
            activities=[CPU, NPU],
            schedule=torch_npu.profiler.schedule(
                wait=0, warmup=0, active=1, repeat=1, skip_first=1
            ),
            on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("./result"),
            experimental_config=experimental_config,
        ) as prof:
            for (batch,) in loader:
                _optimizer().zero_grad()
                out = model(batch)
                criterion(out, torch.zeros_like(out)).backward()
                _optimizer().step()
                prof.step()
    finally:
        dynprof.plugin.uninstall()
    (path,) = (tmp_path / "result").glob("*.trace.json")
    trace = json.loads(path.read_text())
    assert steps_in(trace) == [1]
    assert {"dataloader", "backward", "Optimizer.step#SGD.step"} <= set(ranges(trace))
    assert ranges(trace).count("forward") == 1
    around = [name for name in ranges(trace) if name.startswith("step ")]
    assert sorted(around) == ["step 1", "step 2"]
    assert operators(trace, "aten::addmm") == []


def test_the_sample_of_mstx(tmp_path: Path) -> None:
    """The sample's two ranges cross in the trace, around the work on tensors."""
    from dynprof import mstx

    settings = torch_npu.profiler._ExperimentalConfig(mstx=True)
    with torch_npu.profiler.profile(experimental_config=settings) as prof:
        whole = mstx.range_start("whole")
        one, other = torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7, 8])
        first = mstx.range_start("first", None)
        one + other
        second = mstx.range_start("second", stream=None)
        one - other
        mstx.range_end(first)
        one * other
        mstx.range_end(second)
        mstx.range_end(whole)
    prof.export_chrome_trace(str(tmp_path / "trace.json"))
    trace = json.loads((tmp_path / "trace.json").read_text())
    of_mstx = [event for event in trace["traceEvents"] if event.get("cat") == "mstx"]
    spans = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in of_mstx if e["ph"] == "X"}
    assert set(spans) == {"whole", "first", "second"}
    assert spans["whole"][0] < spans["first"][0] < spans["second"][0] < spans["first"][1]
    assert spans["first"][1] < spans["second"][1] < spans["whole"][1]
    (product,) = operators(trace, "aten::mul")
    assert spans["first"][1] <= product["ts"] <= spans["second"][1]

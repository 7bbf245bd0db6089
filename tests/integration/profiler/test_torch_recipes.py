"""The examples in torch's profiler documentation, with ``dynprof.profiler`` instead."""

from __future__ import annotations

import gzip
import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.runs.one_trace import newest_in, traces_in
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.errors import CaptureError
from dynprof.profiler import (
    ProfilerActivity,
    analyse,
    profile,
    schedule,
    tensorboard_trace_handler,
)
from tests.integration.running import TORCH_JOB, RunningJob, operators, steps_in, wait_for

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")

if TYPE_CHECKING:
    from pathlib import Path

model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
inputs = torch.randn(8, 16)


def test_execution_time_by_operator() -> None:
    """``key_averages().table()``, with the script's own label among the operators."""
    label = torch.autograd.profiler.record_function("model_inference")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof, label:
        model(inputs)
    table = prof.key_averages().table(sort_by="cpu_time_total", row_limit=10)
    assert "model_inference" in table
    assert "aten::addmm" in table
    by_shape = prof.key_averages(group_by_input_shape=True).table(row_limit=30)
    assert "[8, 16]" in by_shape


def test_averages_are_those_of_torch() -> None:
    """Counts by operator equal those of ``torch.profiler.profile`` over the same work."""

    def counts(kind: Any) -> dict[str, int]:
        model.zero_grad()
        with kind(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
            model(inputs).sum().backward()
        return {row.key: row.count for row in prof.key_averages()}

    assert counts(profile) == counts(torch.profiler.profile)


def test_memory_by_operator() -> None:
    """``profile_memory`` fills the memory columns."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        model(inputs)
    rows = {row.key: row for row in prof.key_averages()}
    assert rows["aten::addmm"].cpu_memory_usage == 8 * (32 + 4) * 4
    assert "CPU Mem" in prof.key_averages().table(sort_by="self_cpu_memory_usage")


def test_a_long_job_with_a_schedule_and_a_callback(tmp_path: Path) -> None:
    """The callback runs once a cycle, and can export the active steps."""
    ready: list[int] = []

    def trace_handler(prof: profile) -> None:
        ready.append(prof.step_num)
        assert prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=-1)
        prof.export_chrome_trace(f"test_trace_{prof.step_num}.json")

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
        on_trace_ready=trace_handler,
    ) as prof:
        for _ in range(10):
            model(inputs)
            prof.step()
    assert ready == [4, 8]
    for step in ready:
        trace = json.loads((tmp_path / f"test_trace_{step}.json").read_text())
        assert steps_in(trace) == [step - 2, step - 1]


def test_torchs_activities_schedules_and_handlers_work(tmp_path: Path) -> None:
    """Torch's activities, schedules, actions and handler work."""
    theirs = torch.profiler
    with profile(
        activities=[theirs.ProfilerActivity.CPU],
        schedule=theirs.schedule(wait=0, warmup=1, active=1, repeat=1),
        on_trace_ready=theirs.tensorboard_trace_handler("log", use_gzip=True),
    ) as prof:
        for _ in range(3):
            model(inputs)
            prof.step()
    (path,) = (tmp_path / "log").glob("*.pt.trace.json.gz")
    with gzip.open(path) as file:
        assert steps_in(json.load(file)) == [1]


def test_torchs_experimental_config() -> None:
    """Torch's own ``_ExperimentalConfig`` reaches torch."""
    from torch._C._profiler import _ExperimentalConfig

    with profile(experimental_config=_ExperimentalConfig(capture_overload_names=True)) as prof:
        torch.add(inputs, 1)
    assert any(event.overload_name == "Tensor" for event in prof.events())


def test_tensorboards_folder(tmp_path: Path) -> None:
    """Each cycle leaves a file with TensorBoard's name, gzipped with ``use_gzip``."""
    handler = tensorboard_trace_handler(
        "log", worker_name="worker0", use_gzip=True, analyse_flag=False
    )
    with profile(
        schedule=schedule(wait=0, warmup=1, active=1, repeat=2), on_trace_ready=handler
    ) as prof:
        for _ in range(5):
            model(inputs)
            prof.step()
    paths = sorted((tmp_path / "log").glob("worker0.*.pt.trace.json.gz"))
    assert len(paths) == 2
    with gzip.open(paths[0]) as file:
        assert steps_in(json.load(file)) == [1]
    assert len(list((tmp_path / "log" / "info").glob("*.info.json"))) == 2
    assert prof.key_averages()


def test_folders_named_as_the_vendors(tmp_path: Path) -> None:
    """Each cycle's folder has the vendor's files, and all readers find it."""
    handler = tensorboard_trace_handler(
        "log", worker_name="w0", async_mode=True, vendor_folders=True
    )
    steps = schedule(wait=0, warmup=0, active=1, repeat=2)
    with profile(schedule=steps, on_trace_ready=handler) as prof:
        prof.add_metadata("run", "7")
        for _ in range(3):
            model(inputs)
            prof.step()
    place = tmp_path / "log"
    manifests = "*/info/*.info.json"

    def saved() -> bool | None:
        found = [load_manifest(path) for path in place.glob(manifests)]
        return (len(found) == 2 and all(manifest.left_out for manifest in found)) or None

    wait_for("both", saved)
    folders = sorted(place.iterdir())
    named = rf"w0_{os.getpid()}_\d{{17}}_ascend_pt"
    assert all(re.fullmatch(named, folder.name) for folder in folders)
    assert sorted(place.glob("*_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json")) == [
        folder / "ASCEND_PROFILER_OUTPUT" / "trace_view.json" for folder in folders
    ]
    for folder in folders:
        assert json.loads((folder / "profiler_metadata.json").read_text()) == {"run": "7"}
        config = json.loads((folder / "profiler_info.json").read_text())["config"]
        assert set(config) == {"common_config", "experimental_config"}
    traces = traces_in(place)
    assert [trace.parent for trace in traces] == folders
    assert newest_in(place) == traces[1]
    assert newest_in(folders[0]) == traces[0]
    made = analyse(place)
    assert all(any(folder in path.parents for path in made) for folder in folders)
    for trace in traces:
        trace.unlink()
    with pytest.raises(CaptureError, match=r"no file there ends with trace\.json"):
        traces_in(folders[0])
    (place / "w1_20260101000000000_ascend_pt" / "FRAMEWORK").mkdir(parents=True)
    with pytest.raises(CaptureError, match=r"torch_npu's own analyse\(\) makes trace_view"):
        traces_in(place)


def test_an_execution_trace_observer(tmp_path: Path) -> None:
    """Torch's observer starts and stops with the window, and is removed with the profile."""
    path = tmp_path / "execution_trace.json"
    observer = torch.profiler.ExecutionTraceObserver().register_callback(str(path))
    model(inputs)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        execution_trace_observer=observer,
    ) as prof:
        for _ in range(6):
            model(inputs)
            prof.step()
    nodes = json.loads(path.read_text())["nodes"]
    assert [node["name"] for node in nodes].count("aten::addmm") == 2 * 2
    assert not observer.is_registered


@pytest.mark.filterwarnings("ignore:.*export_memory_timeline:FutureWarning")
def test_the_memory_timeline(tmp_path: Path) -> None:
    """The timeline has torch's categories, for a profile with shapes, memory and stacks."""
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        model(inputs).sum().backward()
    prof.export_memory_timeline("timeline/points.json", device="cpu")
    times, sizes = json.loads((tmp_path / "timeline" / "points.json").read_text())
    assert len(times) == len(sizes) > 5


def test_the_id_of_a_trace(tmp_path: Path) -> None:
    """``get_trace_id`` returns the callback's id, which is in the trace."""
    numbers = iter(range(10))
    with profile(custom_trace_id_callback=lambda: f"ID{next(numbers)}") as prof:
        model(inputs)
    prof.export_chrome_trace("trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert prof.get_trace_id() == trace["trace_id"] == "ID0"
    prof.set_custom_trace_id_callback(lambda: "other")
    with prof:
        model(inputs)
    assert prof.get_trace_id() == "other"


def test_collection_is_switched_off_and_on(tmp_path: Path) -> None:
    """``toggle_collection_dynamic`` leaves out a part of the work."""
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with profile(activities=cpu) as prof:
        torch.add(inputs, 1)
        prof.toggle_collection_dynamic(False, cpu)
        torch.mul(inputs, 2)
        prof.toggle_collection_dynamic(True, cpu)
        torch.sub(inputs, 3)
    names = {event.name for event in prof.events()}
    assert {"aten::add", "aten::sub"} <= names
    assert "aten::mul" not in names


def test_python_backend_works_without_torch(tmp_path: Path) -> None:
    """Without torch's profiler, the same calls give a trace of Python calls."""
    with profile(
        backend="python",
        schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=tensorboard_trace_handler("log"),
    ) as prof:
        for _ in range(5):
            json.dumps({"a": [1, 2, 3]})
            prof.step()
    (path,) = (tmp_path / "log").glob("*.py.trace.json")
    trace = json.loads(path.read_text())
    assert steps_in(trace) == [2, 3]
    assert sum("dumps" in event["name"] for event in trace["traceEvents"]) == 2
    with pytest.warns(UserWarning, match="recorded by python"):
        prof.key_averages()


def test_exports_come_again_and_in_any_form(tmp_path: Path) -> None:
    """A trace can be exported again: to other paths, gzipped or not, and after stacks."""
    with profile(with_stack=True) as prof:
        model(inputs)
    prof.export_stacks("stacks.txt")
    prof.export_chrome_trace("deep/down/one.json")
    prof.export_chrome_trace("two.json.gz")
    one = json.loads((tmp_path / "deep" / "down" / "one.json").read_text())
    with gzip.open(tmp_path / "two.json.gz") as file:
        assert json.load(file) == one
    assert len(operators(one, "aten::addmm")) == 2
    assert len(prof.events()) > 2


def test_async_mode_saves_on_another_thread(tmp_path: Path) -> None:
    """With ``async_mode`` another thread saves each cycle, and none is lost."""
    SELF_TEST.begin()
    wait_for("the self-test", lambda: SELF_TEST.answer)
    handler = tensorboard_trace_handler("log", async_mode=True)
    with profile(
        schedule=schedule(wait=0, warmup=1, active=2, repeat=3), on_trace_ready=handler
    ) as prof:
        for _ in range(10):
            model(inputs)
            prof.step()

    def manifests() -> list[Manifest] | None:
        found = [load_manifest(path) for path in (tmp_path / "log" / "info").glob("*.info.json")]
        return found if sum(manifest.complete for manifest in found) == 3 else None

    found = wait_for("three captures", manifests)
    assert {manifest.closing for manifest in found} == {"detached"}
    paths = sorted((tmp_path / "log").glob("*.json"))
    assert [steps_in(json.loads(path.read_text())) for path in paths] == [[1, 2], [4, 5], [7, 8]]
    assert [m.steps.first for m in sorted(found, key=lambda m: m.request.number)] == [1, 4, 7]
    with pytest.warns(UserWarning, match="closed detached"):
        prof.key_averages()
    assert "aten::addmm" in {row.key for row in run_again().key_averages()}


def run_again() -> profile:
    """Return a new profile, which waits for the collection of earlier events."""
    with profile() as prof:
        model(inputs)
    return prof


def test_operators_window_closes_for_a_profiler_of_the_script(tmp_path: Path) -> None:
    """A script's profile interrupts an open window, and is whole."""
    script = (
        TORCH_JOB
        + """
from dynprof.profiler import profile
dp.init("prof_config")
step = 0
while True:
    state = dp.status().state
    if state == "recording" and step == 0:
        with profile() as prof:
            train_one_step()
        prof.export_chrome_trace("scripts.json")
        step = 1
    train_one_step()
    dp.step()
"""
    )
    with RunningJob(tmp_path, script) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=1000)
        manifest, _ = job.capture()
        assert "the script started a profiler of its own" in manifest.reason
        job.edit(active=2)
        _, trace = job.capture(2)
        assert len(steps_in(trace)) == 2
    scripts = json.loads((tmp_path / "scripts.json").read_text())
    assert len(operators(scripts, "aten::addmm")) == 2

"""From dp.init() to the config that the vendor's profiler writes, with a stub of its driver.

No NPU is needed. The Python layer comes from real torch_npu wheels, which ``make npu`` fetches. The
native module and the device are stubs in ``stub/`` that note their calls.
"""

from __future__ import annotations

import ast
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.config import template_text
from tests.integration.running import TORCH_JOB, RunningJob, wait_for
from tests.npu.fetch import WHEELS, WHEELS_DIR

STUB = Path(__file__).parent / "stub"
pytestmark = pytest.mark.skipif(
    not WHEELS_DIR.is_dir(), reason="the wheels of torch_npu are fetched by make npu"
)
JOB = (
    TORCH_JOB.replace("import sys", "import torch_npu, sys")
    + """
dp.init("prof_config")
while not dp.status().last_capture and not dp.status().problems:
    time.sleep(0.002)
    train_one_step()
    dp.step()
"""
)
EVERYTHING = {
    "activities": ["CPU", "NPU"],
    "record_shapes": True,
    "profile_memory": True,
    "with_stack": True,
    "with_flops": True,
    "with_modules": True,
    "active": 3,
    "warmup": 2,
    "metadata": {"run": 7},
    "memory_snapshot": True,
    "experimental_config": {
        "profiler_level": "Level1",
        "aic_metrics": "L2Cache",
        "l2_cache": True,
        "op_attr": True,
        "gc_detect_threshold": 0.5,
        "data_simplification": False,
        "record_op_args": True,
        "export_type": ["db"],
        "mstx": True,
        "mstx_domain_include": ["comm"],
        "host_sys": ["CPU", "MEM"],
        "sys_io": True,
        "sys_interconnection": True,
    },
}
NEWER = {"host_sys", "mstx_domain_include", "sys_io", "sys_interconnection"}
"""Settings that only the newest of the three versions supports."""


class NpuJob(RunningJob):
    """A job on the stub, with the Python layer of one version."""

    def __init__(self, folder: Path, version: str, script: str = JOB, **env: str) -> None:
        self.calls_path = folder / "calls.jsonl"
        super().__init__(
            folder,
            script,
            PYTHONPATH=os.pathsep.join([str(STUB), os.environ.get("PYTHONPATH", "")]),
            TORCH_NPU_WHEEL=str(WHEELS_DIR / version),
            TORCH_DEVICE_BACKEND_AUTOLOAD="0",
            NPU_CALLS=str(self.calls_path),
            PATH=f"{STUB / 'bin'}:{os.environ['PATH']}",
            **env,
        )

    def __enter__(self) -> NpuJob:
        return self

    def folder(self) -> tuple[Manifest, Path]:
        """Wait for the first capture; return its manifest and the vendor's folder."""
        path = wait_for("a manifest", lambda: self._manifest_path(1))
        manifest = load_manifest(path)
        return manifest, path.parent.parent / str(manifest.trace)

    def calls(self) -> list[list[Any]]:
        """Return the calls of the driver, in order."""
        return [json.loads(line) for line in self.calls_path.read_text().splitlines()]


@pytest.mark.parametrize("version", WHEELS)
def test_every_setting_reaches_the_vendor(tmp_path: Path, version: str) -> None:
    """torch_npu's driver and its own record of the config have the operator's settings."""
    with NpuJob(tmp_path, version) as job:
        job.when("training", lambda status: status.step > 5)
        job.edit(**EVERYTHING)
        manifest, _ = job.folder()
        job.end()
    assert (manifest.backend, manifest.complete, manifest.steps.recorded) == ("npu", True, 3)
    assert manifest.versions["torch_npu"] == version
    ((_, switches, _),) = [call for call in job.calls() if call[0] == "start"]
    assert switches[1:6] == [True] * 5
    native = switches[6]
    assert native["trace_level"] == "Level1"
    assert native["l2_cache"] is native["record_op_args"] is native["msprof_tx"] is True
    newest = version == "2.14.0"
    assert [name in native for name in sorted(NEWER)] == [newest] * 4
    assert "memory_snapshot: NPU keeps no history of its memory here" in manifest.lost
    said = {name for name in NEWER if any(name in text for text in manifest.lost)}
    assert said == (set() if newest else NEWER)


@pytest.mark.parametrize("version", WHEELS)
def test_the_vendors_own_record(tmp_path: Path, version: str) -> None:
    """``profiler_info*.json`` and ``profiler_metadata.json`` have the settings."""
    with NpuJob(tmp_path, version) as job:
        job.when("training", lambda status: status.step > 5)
        job.edit(**EVERYTHING)
        manifest, folder = job.folder()
        job.end()
    assert manifest.trace == folder.name
    assert folder.name.endswith("_ascend_pt")
    (info,) = folder.glob("profiler_info*.json")
    config = json.loads(info.read_text())["config"]
    common, special = config["common_config"], config["experimental_config"]
    assert common["with_stack"] is common["profile_memory"] is True
    assert common["schedule"]["active"] == 3
    assert common["schedule"]["warmup"] == 2
    assert special["_gc_detect_threshold"] == 0.5
    assert special["_data_simplification"] is False
    metadata = json.loads((folder / "profiler_metadata.json").read_text())
    assert metadata["run"] == 7
    assert not list(folder.parent.glob("profiler_metadata*"))
    order = [c[0] for c in job.calls() if c[0] in ("init", "start", "stop", "finalize")]
    assert order == ["init", "start", "stop", "finalize"]
    assert not [p for p in job.root.glob(".*") if p.name.endswith(".recording")]


@pytest.mark.parametrize("version", WHEELS)
def test_a_driver_that_fails_costs_the_job_nothing(tmp_path: Path, version: str) -> None:
    """The vendor prints and swallows its errors; dynprof still refuses the window with a reason."""
    with NpuJob(tmp_path, version, NPU_FAILS="init") as job:
        job.when("training", lambda status: status.step > 5)
        job.edit(**EVERYTHING)
        status = job.when("the refusal", lambda status: bool(status.problems))
        job.end()
    assert "torch_npu.profiler failed in start(): the driver is busy" in status.problems[0]
    assert not [path for path in job.root.rglob("*") if path.name.endswith("_ascend_pt")]


@pytest.mark.parametrize("version", WHEELS)
def test_a_driver_that_fails_at_the_end(tmp_path: Path, version: str) -> None:
    """A window that cannot be finished is discarded with the driver's error; the job continues."""
    with NpuJob(tmp_path, version, NPU_FAILS="finalize") as job:
        job.when("training", lambda status: status.step > 5)
        job.edit(**EVERYTHING)
        manifest, _ = job.folder()
        job.end()
    assert "torch_npu.profiler failed in step(): the driver is gone" in manifest.reason
    assert manifest.trace is None


STATIC = (
    TORCH_JOB.replace("import sys", "import torch_npu, sys")
    + """
import json, threading
from dynprof import profiler as p

def in_child():
    p.profile.enable_profiler_in_child_thread(with_modules=True)
    p.profile.disable_profiler_in_child_thread()

assert p.ProfilerActivity.NPU in p.supported_activities()
assert p.supported_ai_core_metrics() == set(p.AiCMetrics)
settings = p._ExperimentalConfig(
    profiler_level=p.ProfilerLevel.Level1, aic_metrics=p.AiCMetrics.L2Cache, l2_cache=True,
    mstx=True, export_type=p.ExportType.Db, op_attr=True,
)
both = [p.ProfilerActivity.CPU, p.ProfilerActivity.NPU]
with p.profile(
    activities=both, record_shapes=True, with_stack=True, experimental_config=settings,
    schedule=p.schedule(wait=1, warmup=1, active=2, repeat=2),
    on_trace_ready=p.tensorboard_trace_handler("result"),
) as prof:
    prof.add_metadata("run", "7")
    for _ in range(9):
        train_one_step()
        prof.step()
for use_cuda in (False, True):
    assert p.profile(use_cuda=use_cuda)._windows.activities == ("CPU", "NPU")
with p._KinetoProfile(activities=both) as prof:
    train_one_step()
    child = threading.Thread(target=in_child)
    child.start()
    child.join()
prof.export_chrome_trace("alone/trace.json")
"""
)

EXPORTS = """
import torch, torch_npu
from dynprof.profiler import profile
with profile(with_stack=True) as prof:
    torch.ones(4).sum()
    prof.add_metadata("run", "7")
prof.export_stacks("out/stacks.txt")
prof.export_stacks("out/device.log", metric="self_npu_time_total")
prof.export_chrome_trace("out/trace.json")
prof.export_chrome_trace("out/trace.json.gz")
"""


@pytest.mark.parametrize("version", WHEELS)
def test_the_static_api_reaches_the_vendor(tmp_path: Path, version: str) -> None:
    """Each cycle of ``profile`` runs in torch_npu, with its settings and metadata."""
    with NpuJob(tmp_path, version, STATIC) as job:
        _, errors = job.process.communicate()
        assert job.process.returncode == 0, errors
        calls = job.calls()
    starts = [call for call in calls if call[0] == "start"]
    assert len(starts) == 3
    has_call = version == "2.14.0"
    children = [call for call in calls if "child" in call[0]]
    assert [call[0] for call in children] == ["enable in child", "disable in child"] * has_call
    assert [call[1][1:6] for call in children[:1]] == [[False] * 4 + [True]] * has_call
    assert ("a newer torch_npu has this call" in errors) is not has_call
    assert starts[0][1][1:6] == [True, False, True, False, False]
    assert starts[0][1][6]["l2_cache"] is starts[0][1][6]["op_attr"] is True
    folders = list((tmp_path / "result").glob("*_ascend_pt"))
    assert len(folders) == 2
    for folder in folders:
        assert list(folder.glob("profiler_info*.json"))
        assert json.loads((folder / "profiler_metadata.json").read_text())["run"] == "7"
    assert len(list((tmp_path / "result" / "info").glob("*.info.json"))) == 2
    assert [path.name for path in (tmp_path / "alone").iterdir()] == ["trace.json"]


@pytest.mark.parametrize("version", WHEELS)
def test_exports_of_an_npu_are_torch_npus_own(tmp_path: Path, version: str) -> None:
    """On an NPU, torch_npu writes the trace and the stacks to the requested paths."""
    with NpuJob(tmp_path, version, EXPORTS) as job:
        _, errors = job.process.communicate()
    stacks = (tmp_path / "out" / "stacks.txt").read_text()
    assert stacks.strip() == "train.py(9): main;train.py(7): step 5", errors
    trace = (tmp_path / "out" / "trace.json").read_bytes()
    assert "aten::addmm" in {event["name"] for event in json.loads(trace)}
    assert gzip.decompress((tmp_path / "out" / "trace.json.gz").read_bytes()) == trace
    assert "metadata is not in the trace that torch_npu exports" in errors
    assert "device.log is empty" in errors or "torch_npu made no file in export_stack" in errors
    assert not list(tmp_path.rglob("*_ascend_pt"))


def test_a_trace_that_torch_npu_cannot_export_is_kept(tmp_path: Path) -> None:
    """If torch_npu writes no file, a warning says so, and its folder takes the file's place."""
    with NpuJob(tmp_path, "2.14.0", EXPORTS.rpartition("prof.")[0], NPU_FAILS="data") as job:
        _, errors = job.process.communicate()
    assert "export_stacks() failed: torch_npu made no file in export_stack" in errors
    assert "torch_npu made no file in export_chrome_trace" in errors
    assert "the NPU's recording is the folder" in errors
    assert len(list((tmp_path / "out").glob("*_ascend_pt"))) == 1
    assert not list(tmp_path.glob("*_ascend_pt"))


def test_the_folder_of_stacks_that_torch_npu_cannot_make_is_kept(tmp_path: Path) -> None:
    """If torch_npu writes no stacks, its folder is saved in the usual place."""
    script = EXPORTS.partition("prof.export_chrome")[0]
    with NpuJob(tmp_path, "2.14.0", script, NPU_FAILS="data") as job:
        _, errors = job.process.communicate()
    (folder,) = tmp_path.glob("*_ascend_pt")
    assert f"it was saved as {folder}" in errors


def test_the_template_is_that_of_the_newest_version() -> None:
    """The template matches torch_npu 2.14, except that export_type is a word."""
    name = "torch_npu/profiler/_dynamic_profiler/_dynamic_profiler_monitor_shm.py"
    source = ast.parse((WHEELS_DIR / "2.14.0" / name).read_text())
    (vendors,) = (
        ast.literal_eval(node.value)
        for node in ast.walk(source)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "JSON_DATA"
    )
    vendors["experimental_config"]["export_type"] = "text"
    template = json.loads(template_text())
    assert json.dumps({key: template[key] for key in template if key in vendors}) == json.dumps(
        vendors
    )


def test_log_names_the_missing_torch_npu(tmp_path: Path) -> None:
    """The log of a job without torch_npu names it as the reason, and torch profiles."""
    with RunningJob(tmp_path, JOB.replace("import torch_npu, sys", "import sys")) as job:
        status = job.when("training", lambda status: status.step > 5)
        job.edit(active=1, activities=["CPU"])
        manifest, _ = job.capture()
        job.end()
    missing = {capable.backend: capable.missing for capable in status.profilers}
    assert missing["npu"] == "this process has not imported torch_npu"
    assert manifest.backend == "torch"


MARKED = (
    TORCH_JOB.replace("import sys", "import torch_npu, sys")
    + """
import dynprof.mstx as mstx
dp.init("prof_config")
stream = torch_npu.npu.streams.Stream()
epoch = mstx.range_start("epoch", domain="comm")
mstx.range_push("pushed")
while not dp.status().last_capture and not dp.status().problems:
    time.sleep(0.002)
    with mstx.annotate("forward", stream):
        train_one_step()
    mstx.mark("here", 0, "comm")
    mstx.mark("of no stream of the vendor's", 12345)
    try:
        torch.cuda.nvtx.mark("of NVTX")
    except RuntimeError:
        pass
    dp.step()
"""
)


@pytest.mark.parametrize("version", WHEELS)
def test_marks_reach_the_vendor(tmp_path: Path, version: str) -> None:
    """While torch_npu records, it gets each mark and each range's end."""
    with NpuJob(tmp_path, version, MARKED) as job:
        job.when("training", lambda status: status.step > 5)
        job.edit(active=3, warmup=1, experimental_config={"mstx": True})
        manifest, _ = job.folder()
        calls = job.calls()
    assert manifest.complete
    order = [call[0] for call in calls]
    first, last = order.index("start"), order.index("stop")
    begun = {call[1]: call[2:] for call in calls[first:last] if call[0] == "range start"}
    ended = {call[1] for call in calls[first:last] if call[0] == "range end"}
    moments = [call[1:] for call in calls if call[0] == "mark"]
    newest = version == "2.14.0"
    wanted = {"epoch", "pushed", "forward"}
    ours = {number: said for number, said in begun.items() if said[0] in wanted}
    assert set(ours) <= ended
    assert len(ours) == sum(call[0] == "range start" and call[2] in wanted for call in calls)
    forward = ["forward", 7, 0, 20, "default"] if newest else ["forward", 7]
    around = [["epoch", "comm"], ["pushed", "default"]] if newest else [["epoch"], ["pushed"]]
    assert sorted(ours.values(), key=str) == sorted([*around, *[forward] * 3], key=str)
    for said in (
        ["here", "comm"],
        ["of no stream of the vendor's", "default"],
        ["of NVTX", "nvtx"],
    ):
        assert moments.count(said if newest else said[:1]) == 3
    assert len(moments) == 9


ACL = """
import threading, warnings
import torch, torch_npu
from dynprof import acl
from dynprof.errors import SessionError
acl.init()
acl.prof.init("out")
with warnings.catch_warnings(record=True) as caught:
    config = acl.prof.create_config([0, 1], 5, 0, 0x0008 | 0x0004 | 0x0010)
    acl.prof.start(config)
(text,) = {str(warning.message) for warning in caught}
assert text == "there is no device 1 here; the others and the host are recorded", text
said = []
def stop():
    try:
        acl.prof.stop(config)
    except SessionError as error:
        said.append(str(error))
thread = threading.Thread(target=stop)
thread.start()
thread.join()
(text,) = said
assert "only the thread that started this recording may stop it: MainThread" in text
acl.prof.stop(config)
acl.prof.finalize()
acl.finalize()
"""


@pytest.mark.parametrize("version", WHEELS)
def test_a_config_of_pyacl_reaches_the_vendor(tmp_path: Path, version: str) -> None:
    """torch_npu gets metrics and data types; only the starting thread stops."""
    with NpuJob(tmp_path, version, ACL) as job:
        _, errors = job.process.communicate()
        assert job.process.returncode == 0, errors
        ((_, switches, _),) = [call for call in job.calls() if call[0] == "start"]
    assert switches[6]["trace_level"] == "Level2"
    assert switches[6]["metrics"] == "ACL_AICORE_MEMORY_UB"
    assert switches[6]["l2_cache"] is True
    assert len(list((tmp_path / "out").glob("*_ascend_pt"))) == 1


GRAPHS = """
import os, warnings
from pathlib import Path
import torch, torch_npu
class Graph:
    def capture_begin(self, pool=None, capture_error_mode="global"):
        pass
    def capture_end(self):
        pass
torch_npu.npu.NPUGraph = Graph
from dynprof import acl
from dynprof.errors import BackendError
warnings.simplefilter("ignore")
acl.init()
acl.prof.init("out")
config, graph = acl.prof.create_config([0]), Graph()
acl.prof.start(config)
calls = lambda: Path(os.environ["NPU_CALLS"]).read_text()
before = calls()
graph.capture_begin()
acl.prof.stop(config)
try:
    acl.prof.start(config)
except BackendError as error:
    assert "an NPU graph is being captured" in str(error), error
else:
    raise AssertionError("started in a capture")
assert calls() == before
graph.capture_end()
assert '["stop"]' in calls().removeprefix(before)
"""


@pytest.mark.parametrize("version", WHEELS)
def test_driver_gets_no_call_during_a_graph_capture(tmp_path: Path, version: str) -> None:
    """During a graph capture start() fails, stop() is delayed, and the driver gets no call."""
    with NpuJob(tmp_path, version, GRAPHS) as job:
        _, errors = job.process.communicate()
    assert job.process.returncode == 0, errors

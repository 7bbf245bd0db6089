"""``memory_snapshot``: the memory timeline without a device, a pickle with one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dynprof.backends.torch.collectors import MemoryHistory
from dynprof.profiler import profile, tensorboard_trace_handler
from tests.integration.running import TORCH_JOB, RunningJob, below, wait_for

torch = pytest.importorskip("torch", reason="torch is not installed")

JOB = (
    TORCH_JOB
    + """
dp.init("prof_config")
while True:
    kept = torch.empty(1_000_000)
    train_one_step()
    time.sleep(0.002)
    del kept
    dp.step()
"""
)


def points(folder: Path) -> dict[str, Any]:
    """Wait for the timeline in a folder, at any depth; return the CPU's points."""

    def found() -> Path | None:
        return next(iter(below(folder, "memory_timeline.html")), None)

    page = wait_for("the timeline", found)
    assert "<svg" in page.read_text()
    timeline: dict[str, Any] = json.loads(page.with_suffix(".json").read_text())["cpu"]
    return timeline


def test_a_window_without_a_device_gets_its_timeline(tmp_path: Path) -> None:
    """A process next to the training draws it, and the log says so."""
    with RunningJob(tmp_path, JOB) as job:
        job.when("training", lambda status: status.step > 3)
        job.edit(active=3, memory_snapshot=True)
        job.capture()
        timeline = points(job.root)
        wait_for("the log", lambda: "analysed step_" in job.log() or None)
    totals = timeline["allocated_bytes"]
    assert max(totals) - min(totals) >= 4_000_000
    assert len(totals) == len(timeline["time_ns"]) > 10
    assert timeline["time_ns"] == sorted(timeline["time_ns"])


@pytest.mark.parametrize("handled", [True, False])
def test_profile_writes_the_memory_timeline(tmp_path: Path, handled: bool) -> None:
    """The timeline exists after the trace is saved, by a handler or by hand."""
    handler = tensorboard_trace_handler(tmp_path) if handled else None
    with profile(memory_snapshot=True, on_trace_ready=handler) as prof:
        kept = torch.empty(1_000_000)
        del kept
    if not handled:
        prof.export_chrome_trace(tmp_path / "trace.json")
    assert max(points(tmp_path)["allocated_bytes"]) >= 4_000_000


def test_a_device_without_a_history_says_so() -> None:
    """There is no XPU here, and its allocator keeps no history; the CPU has its timeline."""
    (found,) = MemoryHistory.of_devices(("CPU", "XPU"))
    if not hasattr(torch.xpu.memory, "_record_memory_history"):
        assert found.save(Path()) == ("memory_snapshot: XPU keeps no history of its memory here",)


def test_a_device_that_was_not_used_yet_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The allocator is not initialised: torch 2.11 on an H100 crashes when asked if it records."""

    def ask() -> bool:
        pytest.fail("asking crashes the process")

    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", ask, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    (found,) = MemoryHistory.of_devices(("CPU", "CUDA"))
    found.start()
    found.stop()
    assert found.save(Path()) == ("memory_snapshot: this process has not used CUDA yet",)


class FakeMemory:
    """An allocator that keeps a history, as in ``torch.cuda.memory``."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _record_memory_history(self, **settings: Any) -> None:
        self.calls.append(settings)

    def _snapshot(self) -> dict[str, Any]:
        return {"segments": [], "device_traces": [[{"action": "alloc"}]]}


@pytest.mark.parametrize("scripts", [False, True])
def test_a_devices_history_is_pickled(tmp_path: Path, scripts: bool) -> None:
    """The history is on only in the window; one that the script records itself is only read."""
    memory = FakeMemory()
    history = MemoryHistory(memory, is_recording=scripts)
    history.start()
    history.stop()
    assert history.save(tmp_path / "rank_0") == ()
    with (tmp_path / "rank_0.memory_snapshot.pickle").open("rb") as file:
        assert pickle.load(file)["device_traces"][0][0]["action"] == "alloc"  # noqa: S301
    switched = [call.get("enabled", "on") for call in memory.calls]
    assert switched == ([] if scripts else ["on", None])

"""Torch versions other than the installed one: missing features and new warnings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dynprof.profiler import profile
from tests.integration.running import TORCH_JOB, RunningJob

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

OLD = """
import torch._C._profiler as native
class Old(native._ExperimentalConfig):
    def __init__(self, *, enable_cuda_sync_events=False):
        super().__init__(enable_cuda_sync_events=enable_cuda_sync_events)
Old.__init__.__doc__ = "__init__(self: Old, enable_cuda_sync_events: bool = False) -> None"
native._ExperimentalConfig = Old
"""
"""The API of torch 2.4: it has one of the switches that dynprof uses."""
NEW = """
import warnings
from torch.autograd.profiler import profile
def init(self, *args, with_modules=False, init=profile.__init__, **more):
    if with_modules:
        warnings.warn("with_modules is deprecated", FutureWarning, stacklevel=2)
    init(self, *args, with_modules=with_modules, **more)
profile.__init__ = init
profile.__doc__ += "``with_modules`` is deprecated"
"""
"""The API of torch 2.14 and newer."""
JOB = """
dp.init("prof_config")
while not dp.status().last_capture:
    train_one_step()
    time.sleep(0.002)
    dp.step()
"""


def test_features_missing_in_an_older_torch_are_left_out_and_named(tmp_path: Path) -> None:
    """Level2 and other threads need newer features: the window is recorded without them."""
    with RunningJob(tmp_path, TORCH_JOB + OLD + JOB) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(experimental_config={"profiler_level": "Level2"})
        manifest, _ = job.capture()
        assert manifest.complete
        device, level, threads = manifest.remarks
        assert "Level2 adds to Level0 on the CPU only what collectives took" in device
        assert "/experimental_config/profiler_level: Level2 has no overloads" in level
        assert threads.startswith("only the thread that opens the window is recorded: torch lacks")
        job.end()


def test_warnings_of_a_newer_torch_are_in_the_log(tmp_path: Path) -> None:
    """The warning is not on the job's stderr. Its filters stay unchanged; the setting is used."""
    with RunningJob(tmp_path, TORCH_JOB + NEW + JOB) as job:
        job.when("training", lambda status: status.state == "idle")
        job.edit(with_modules=True)
        manifest, trace = job.capture()
        assert manifest.complete
        assert trace["with_modules"] == 1
        (remark,) = manifest.remarks
        assert "/with_modules: this sees TorchScript models only" in remark
        assert "/with_modules: this sees TorchScript models only" in job.log()
        _, errors = job.process.communicate(timeout=100)
        assert (job.process.returncode, "FutureWarning" in errors) == (0, False), errors


@pytest.mark.usefixtures("own_place")
def test_an_older_torch_is_not_asked_for_overloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older torch has averages by shape and stack only, and scripts can still get these."""
    newer = torch.profiler._KinetoProfile.key_averages

    def older(self: Any, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Any:
        return newer(self, group_by_input_shape, group_by_stack_n)

    monkeypatch.setattr(torch.profiler._KinetoProfile, "key_averages", older)
    with profile() as prof:
        torch.ones(4).sum()
    assert "aten::sum" in {row.key for row in prof.key_averages()}

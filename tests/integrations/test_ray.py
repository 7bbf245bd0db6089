"""Two real Ray Train workers are watched, and their captures are whole when Ray kills them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integrations.jobs import log, windows

pytest.importorskip("ray", reason="ray is not installed; make integrations has it")

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import tempfile

import ray, ray.train
from ray.train.torch import TorchTrainer
from torch.profiler import record_function

root = str(Path("prof_config").absolute())

def loop(config):
    layer = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    dp.set_state({"cur_step": 100})
    for step in range(100, config["until"]):
        if step == 110:
            torch.distributed.barrier()  # both have set their numbers: else the window is refused
            if ray.train.get_context().get_world_rank() == 0:
                ask(root, start_step=115, active=50)
            wait(ready)
            torch.distributed.barrier()
        with record_function(f"batch of {step}"):
            layer(torch.randn(2, 8)).square().mean().backward()
            optimizer.step()
        dp.step()

with tempfile.TemporaryDirectory(prefix="ray") as place:  # paths of its sockets must be short
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, _temp_dir=place)
    TorchTrainer(
        dp.integrations.ray.watched(loop, "prof_config"),
        train_loop_config={"until": 119},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=root + "/../results"),
    ).fit()
    ray.shutdown()
"""


@pytest.mark.timeout(240)
def test_each_worker_watches_as_its_rank(tmp_path: Path) -> None:
    """Both resume their numbers and agree. A window that is open at the loop's end is saved."""
    found = windows(tmp_path, JOB, HOME=str(tmp_path), RAY_USAGE_STATS_ENABLED="0")
    assert [window.manifest.rank for window in found] == [0, 1]
    for window in found:
        assert window.manifest.steps.first == 116
        assert window.manifest.steps.recorded == 3
        assert window.inside("batch of") == {
            **{step: Counter({f"batch of {step}": 1}) for step in (116, 117, 118)},
            119: Counter(),  # one has begun and one has ended with the loop
        }
        assert window.manifest.steps.source == "dp.step()"
    assert "rank 1 of 2" in log(tmp_path)
    assert "ranks 0 to 1 agreed on step 115 after " in log(tmp_path)

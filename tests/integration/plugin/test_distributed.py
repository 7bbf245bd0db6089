"""Phases where a model is spread over processes: DDP and FSDP2 on gloo, distributed checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import json, os, pathlib, sys
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
import dynprof.mstx as mstx

kind, marks = sys.argv[1], sys.argv[2] == "marks"
if marks:
    import dynprof.plugin
torch.manual_seed(0)
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
model = torch.nn.Sequential(*layers)
if kind == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
else:
    from torch.distributed.fsdp import fully_shard
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in layers[::2]:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(12, 16) + rank)
found = []

def train():
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    total = torch.ones(1)
    dist.all_reduce(total)
    state = {"model": model.state_dict()}
    dcp.save(state, checkpoint_id="saved")
    dcp.async_save(state, checkpoint_id="later").result()

if marks:
    with mstx.subscribe(found.append):
        train()
else:
    train()
full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
weights = [value.detach().double().sum().item().hex() for value in full]
told = {"weights": weights, "phases": [[f.message, f.domain] for f in found]}
pathlib.Path(f"{kind}_{rank}_{sys.argv[2]}.json").write_text(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo's threads are not waited for
"""


def told(folder: Path, kind: str, marks: str) -> list[dict[str, Any]]:
    """Run it on two ranks; return what each told."""
    (folder / "job.py").write_text(textwrap.dedent(JOB))
    options = ["--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "job.py", kind, marks]
    done = processes.run(command, cwd=folder, stdout=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"{kind}_{rank}_{marks}.json").read_text()) for rank in (0, 1)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_model_that_is_spread_over_processes(tmp_path: Path, kind: str) -> None:
    """Trains to the very weights it would; each phase is once a step, each save one phase."""
    plain, marked = told(tmp_path, kind, "plain"), told(tmp_path, kind, "marks")
    assert [one["weights"] for one in marked] == [one["weights"] for one in plain]
    for one in marked:
        assert {domain for _, domain in one["phases"]} == {"phases"}
        names = [name for name, _ in one["phases"]]
        for name in ("forward", "backward", "optimizer.step", "optimizer.zero_grad"):
            assert names.count(name) == 3, (name, names)
        assert names.count("dataloader") == 4
        assert names.count("save_checkpoint") == 2, names
        assert names.count("all_reduce") >= 1

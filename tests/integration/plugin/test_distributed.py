"""Phases of a distributed model: DDP and FSDP2 with gloo, distributed checkpoints."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import pytest

from tests.integration.launching import end_well, ranks

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
import json, os, pathlib, sys
import torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
import dynprof.mstx as mstx

kind = "KIND"
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()

def train():
    # Return the weights, in short.
    torch.manual_seed(0)
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
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
    dist.all_reduce(torch.ones(1))
    state = {"model": model.state_dict()}
    dcp.save(state, checkpoint_id="saved")
    dcp.async_save(state, checkpoint_id="later").result()
    full = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [value.detach().double().sum().item().hex() for value in full]

plain, found = train(), []
import dynprof.plugin
with mstx.subscribe(found.append):
    marked = train()
told = {"plain": plain, "marked": marked, "phases": [[f.message, f.domain] for f in found]}
pathlib.Path(f"{rank}.json").write_text(json.dumps(told))
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo's threads are not waited for
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_model_that_is_spread_over_processes(tmp_path: Path, kind: str) -> None:
    """With DDP and FSDP each step has its phases, and each save is one phase."""
    with ranks(tmp_path, textwrap.dedent(JOB).replace("KIND", kind), 2) as running:
        end_well(running)
    for rank in (0, 1):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert told["marked"] == told["plain"]
        assert {domain for _, domain in told["phases"]} == {"phases"}
        names = [name for name, _ in told["phases"]]
        for name in ("forward", "backward", "optimizer.step", "optimizer.zero_grad"):
            assert names.count(name) == 3, (name, names)
        assert names.count("dataloader") == 4
        assert names.count("save_checkpoint") == 2, names
        assert names.count("all_reduce") >= 1

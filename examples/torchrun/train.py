"""Data-parallel training under torchrun, resumed from a checkpoint; every rank can be profiled.

``torchrun --nproc-per-node 2 train.py``; then, in another terminal,
``dynprof arm prof_config --active 3 --wait``.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dynprof as dp

CHECKPOINT = Path("checkpoint.pt")
EVERY = 500


def main(steps: int = int(os.environ.get("STEPS", "5000"))) -> None:
    """Train a small model on random data, from the last checkpoint on."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = int(os.environ["LOCAL_RANK"])
    if device == "cuda":
        torch.cuda.set_device(rank)
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(256, 10).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        first = saved["step"]

    dp.init("prof_config")  # machines may have different checkpoints: rank 0's number counts
    dp.set_state({"cur_step": first})  # so that --start-step means the job's own numbers
    for step in range(first, steps):
        inputs = torch.randn(64, 256, device=device)
        loss = torch.nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dp.step()
        if step % EVERY == EVERY - 1 and dist.get_rank() == 0:
            torch.save({"model": model.state_dict(), "step": step + 1}, CHECKPOINT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Trains a small transformer encoder until STOP_FILE exists: ``torch_job.py DIR STOP_FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

import dynprof as dp


def main(directory: str, stop_file: str) -> None:
    """Train with one batch per step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(d_model=64, nhead=4, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 16, 64)
    loss = torch.zeros(())

    dp.init(directory, role="")
    while not Path(stop_file).exists():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        dp.step()

    print(json.dumps({"steps": dp.status().step, "loss": float(loss.detach())}))


if __name__ == "__main__":
    main(*sys.argv[1:])

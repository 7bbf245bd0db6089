"""A torch training loop. Run it, then edit prof_config/profiler_config.json in another terminal."""

from __future__ import annotations

import contextlib

import torch

import dynprof as dp


def main(steps: int = 1_000_000) -> None:
    """Train a small classifier on random data. Ctrl-C ends it."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 10)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    dp.init("prof_config")
    for step in range(1, steps + 1):
        inputs = torch.randn(64, 128, device=device)
        targets = inputs[:, :10].argmax(1)
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dp.step()
        if step % 500 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

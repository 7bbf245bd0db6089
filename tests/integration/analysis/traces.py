"""Real traces: of a small model, recorded here, and of real devices if a folder has them."""

from __future__ import annotations

import csv
import functools
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.profiler import profile, schedule

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch", reason="torch is not installed")

layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@functools.cache
def optimizer() -> Any:
    """Return a torch optimizer. It loads the compiler, which collecting tests must not do."""
    return torch.optim.Adam(model.parameters())


def recorded(path: Path, **settings: Any) -> profile:
    """Record three training steps; write the trace."""
    adam = optimizer()
    with profile(schedule=schedule(wait=0, warmup=1, active=3, repeat=1), **settings) as prof:
        for _ in range(4):
            adam.zero_grad()
            model(torch.randn(4, 8, 32)).square().mean().backward()
            adam.step()
            prof.step()
    prof.export_chrome_trace(path)
    return prof


def rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))

"""A loop with a real Accelerator and gradient accumulation: captures have the same steps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integrations.jobs import log, noted, windows

pytest.importorskip("accelerate", reason="accelerate is not installed; make integrations has it")

if TYPE_CHECKING:
    from pathlib import Path

JOB = """
from accelerate import Accelerator
from torch.profiler import record_function

def train(batches, at, *, resume=False):
    "Train; the steps are counted here where the weights have changed."
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    layer = torch.nn.Linear(8, 1)
    data = torch.utils.data.DataLoader(torch.randn(2 * batches, 8), batch_size=2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer, optimizer, data = accelerator.prepare(layer, optimizer, data)
    profiler = dp.integrations.accelerate.Dynprof("prof_config", accelerator)
    accelerator.register_for_checkpointing(profiler)
    made = 0
    if resume:
        accelerator.load_state("kept")
        made = 8
    for batch in data:
        before = layer.weight.detach().clone()
        with accelerator.accumulate(layer), record_function(f"batch of {made}"):
            accelerator.backward(layer(batch).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        made += not torch.equal(before, layer.weight)
        if made == at:
            at = -1
            ask()
        profiler.step()
    accelerator.save_state("kept")
    return made, dp.status().step

first = train(24, at=3)
Path("noted.json").write_text(json.dumps([first, train(36, at=12, resume=True)]))
"""


def test_a_step_is_an_optimizer_step_of_accelerate(tmp_path: Path) -> None:
    """A step has three batches. A resumed training continues at its checkpoint's number."""
    first, resumed = windows(tmp_path, JOB)
    assert noted(tmp_path) == [[8, 8], [20, 20]]
    for window, steps in ((first, (4, 5)), (resumed, (13, 14))):
        assert window.steps == steps
        assert window.inside("batch of") == {
            step: Counter({f"batch of {step}": 3}) for step in steps
        }
        assert window.manifest.steps.source == "Accelerate's callback"
    assert "Accelerate is at step 8, not at 0" in log(tmp_path)

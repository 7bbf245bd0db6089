"""Two ranks, started by torchrun or a framework's own launcher: both record its steps."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integrations.jobs import log, windows

if TYPE_CHECKING:
    from pathlib import Path

BEGINNING = """
import os
from torch.profiler import record_function

def layers():
    return torch.nn.Linear(8, 1)

def data(count):
    return [{"x": torch.randn(8)} for _ in range(count)]

def reached(step, rank, at=[3]):
    "Ask for a window at step 3: one rank asks; the other one goes on when it has seen it."
    if at and step >= at[0]:
        at.clear()
        ask() if rank == 0 else wait(lambda: dp.status().edits)
"""
LIGHTNING = """
import lightning.pytorch as pl

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = layers()

    def training_step(self, batch, index):
        with record_function(f"batch of {self.trainer.global_step}"):
            return self.layer(batch["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

class Operator(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        reached(trainer.global_step, trainer.global_rank)

if __name__ == "__main__":
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, accumulate_grad_batches=2,
        logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[dp.integrations.lightning.Dynprof("prof_config"), Operator()])
    trainer.fit(Model(), torch.utils.data.DataLoader(data(2 * 2 * 10)))
"""
HUGGING_FACE = """
from transformers import Trainer, TrainerCallback, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = layers()

    def forward(self, x):
        with record_function(f"batch of {trainer.state.global_step}"):
            return {"loss": self.layer(x).square().mean()}

class Operator(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        reached(state.global_step, args.process_index)

arguments = TrainingArguments(
    output_dir="out", use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no",
    per_device_train_batch_size=1, gradient_accumulation_steps=2, max_steps=10)
trainer = Trainer(Model(), arguments, train_dataset=data(80), callbacks=[
    dp.integrations.huggingface.Dynprof("prof_config"), Operator()])
trainer.train()
"""
ACCELERATE = """
from accelerate import Accelerator

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
layer = layers()
loader = torch.utils.data.DataLoader(data(2 * 2 * 10))
layer, optimizer, loader = accelerator.prepare(
    layer, torch.optim.SGD(layer.parameters(), lr=0.01), loader)
profiler = dp.integrations.accelerate.Dynprof("prof_config", accelerator)
made = 0
for batch in loader:
    with accelerator.accumulate(layer), record_function(f"batch of {made}"):
        accelerator.backward(layer(batch["x"]).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    made += accelerator.sync_gradients
    reached(made, accelerator.process_index)
    profiler.step()
"""
LOCAL = ("--standalone", "--local-addr=127.0.0.1")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *LOCAL)


@pytest.mark.parametrize(
    ("framework", "name", "script", "command"),
    [
        ("lightning", "Lightning", LIGHTNING, ()),
        ("transformers", "Hugging Face", HUGGING_FACE, TORCHRUN),
        ("accelerate", "Accelerate", ACCELERATE, TORCHRUN),
    ],
    ids=["lightning", "huggingface", "accelerate"],
)
def test_both_ranks_record_the_frameworks_steps(
    tmp_path: Path, framework: str, name: str, script: str, command: tuple[str, ...]
) -> None:
    """A step has two batches in each rank, and the framework's number at that moment."""
    pytest.importorskip(framework, reason=f"{framework} is not installed; make integrations has it")
    found = windows(tmp_path, BEGINNING + script, *command, OMP_NUM_THREADS="1")
    assert [window.manifest.rank for window in found] == [0, 1]
    for window in found:
        first, last = window.steps
        assert first is not None
        assert window.inside("batch of") == {
            step: Counter({f"batch of {step}": 2}) for step in (first, last)
        }
        assert window.manifest.complete
        assert window.manifest.steps.source == f"{name}'s callback"
        assert (window.manifest.world_size, last) == (2, first + 1)
    assert log(tmp_path).count("steps come from") == 2

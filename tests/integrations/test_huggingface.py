"""A real transformers Trainer with accumulation and evaluation: captures have the same steps."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integrations.jobs import Window, log, noted, windows

pytest.importorskip(
    "transformers", reason="transformers is not installed; make integrations has it"
)

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
from torch.profiler import record_function
from transformers import Trainer, TrainerCallback, TrainingArguments

now = 0

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def forward(self, x, labels=None):
        with record_function(f"{'batch of' if self.training else 'evaluating at'} {now}"):
            return {"loss": self.layer(x).square().mean()}

class Operator(TrainerCallback):
    "Asks for windows, and notes how far the trainer says that it is."
    def __init__(self, at, **settings):
        self.at, self.settings = at, settings

    def on_step_begin(self, args, state, control, **_):
        global now
        now = state.global_step

    def on_step_end(self, args, state, control, **_):
        global now
        now = state.global_step
        if self.at and now >= self.at:
            self.at = 0
            ask(**self.settings)

def data(count):
    return [{"x": torch.randn(8), "labels": torch.zeros(1)} for _ in range(count)]

def trainer(*callbacks, **settings):
    arguments = TrainingArguments(
        output_dir="out", use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=1000,
        per_device_train_batch_size=2, gradient_accumulation_steps=3, **settings)
    return Trainer(Model(), arguments, train_dataset=data(24), eval_dataset=data(4),
                   callbacks=list(callbacks))
"""
TWO_TRAININGS = """
marks = {"experimental_config": {"mstx": True}}
dynprof = dp.integrations.huggingface.Dynprof("prof_config")
first = trainer(dynprof, Operator(3, **marks), max_steps=8, eval_strategy="steps", eval_steps=3,
                save_strategy="steps", save_steps=6)
first.train()
after = dp.status()
second = trainer(dynprof, Operator(10, active=3), max_steps=20, save_strategy="no")
second.train(resume_from_checkpoint="out/checkpoint-6")
Path("noted.json").write_text(json.dumps(
    [first.state.global_step, after.step, second.state.global_step, dp.status().step]))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Window]]:
    """Train once with evaluation, then resume from a checkpoint with another trainer."""
    folder = tmp_path_factory.mktemp("job")
    return folder, windows(folder, MODEL + TWO_TRAININGS)


def test_a_step_is_an_optimizer_step_of_the_trainer(job: tuple[Path, list[Window]]) -> None:
    """A step has three batches and the current ``global_step``. Evaluation is no step."""
    _, (window, _) = job
    assert window.steps == (5, 6)
    assert window.inside("batch of") == {
        5: Counter({"batch of 5": 3}),
        6: Counter({"batch of 6": 3}),
    }
    assert window.inside("evaluating at")[6] == Counter({"evaluating at 6": 1})
    assert not window.inside("evaluating at")[5]


def test_resumed_training_continues_at_its_step_number(job: tuple[Path, list[Window]]) -> None:
    """A second ``train()`` in the same process, with the same callback, continues the numbers."""
    folder, (_, window) = job
    assert noted(folder) == [8, 8, 20, 20]
    assert window.steps == (12, 14)
    assert window.inside("batch of") == {
        step: Counter({f"batch of {step}": 3}) for step in (12, 13, 14)
    }
    assert "Hugging Face is at step 6, not at 8" in log(folder)


def test_log_and_manifest_name_the_callback(job: tuple[Path, list[Window]]) -> None:
    """Both name it as the source of the steps."""
    folder, (window, _) = job
    assert window.manifest.steps.source == "Hugging Face's callback"
    assert "steps come from Hugging Face's callback" in log(folder)


def test_the_trainers_phases_are_marked(job: tuple[Path, list[Window]]) -> None:
    """Windows with marks have them, other windows do not."""
    _, (marked, unmarked) = job
    for name in ("evaluate", "save_checkpoint"):
        assert [step[name] for step in marked.inside(name).values()] == [0, 1]
        assert not any(unmarked.inside(name).values())

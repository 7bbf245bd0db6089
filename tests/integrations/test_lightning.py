"""A real Lightning trainer with accumulation and validation: captures have the same steps."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.integrations.jobs import Window, log, noted, windows

pytest.importorskip("lightning", reason="Lightning is not installed; make integrations has it")

if TYPE_CHECKING:
    from pathlib import Path

MODEL = """
import lightning.pytorch as pl
from torch.profiler import record_function

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        with record_function(f"batch of {self.trainer.global_step}"):
            return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        with record_function(f"validating at {self.trainer.global_step}"):
            self.layer(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

class Operator(pl.Callback):
    "Asks for windows, and notes how far Lightning says that it is."
    def __init__(self, at, **settings):
        self.at, self.settings = at, settings

    def on_train_batch_end(self, trainer, *_):
        if self.at and trainer.global_step >= self.at:
            self.at = 0
            ask(**self.settings)

def loader(batches=12):
    return torch.utils.data.DataLoader(torch.randn(2 * batches, 8), batch_size=2)

def trainer(*callbacks, **settings):
    quiet = dict(logger=False, enable_progress_bar=False, enable_model_summary=False)
    once = dict(accelerator="cpu", devices=1, **quiet)
    settings = {**once, "enable_checkpointing": False, **settings}
    return pl.Trainer(callbacks=list(callbacks), **settings)
"""
TWO_TRAININGS = """
marks = {"experimental_config": {"mstx": True}}
model, dynprof = Model(), dp.integrations.lightning.Dynprof("prof_config")
first = trainer(dynprof, Operator(3, **marks), max_epochs=2, accumulate_grad_batches=3,
                val_check_interval=6)
first.fit(model, loader(), loader(2))
first.save_checkpoint("kept.ckpt")
after = dp.status()
second = trainer(dynprof, Operator(10, active=3), max_epochs=5, accumulate_grad_batches=3)
second.fit(model, loader(), ckpt_path="kept.ckpt")
Path("noted.json").write_text(json.dumps(
    [first.global_step, after.step, second.global_step, dp.status().step]))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Window]]:
    """Train once with validation, then resume from the checkpoint with another trainer."""
    folder = tmp_path_factory.mktemp("job")
    return folder, windows(folder, MODEL + TWO_TRAININGS)


def test_a_step_is_an_optimizer_step_of_lightning(job: tuple[Path, list[Window]]) -> None:
    """A step has three batches and the current ``global_step``. Validation is no step."""
    _, (window, _) = job
    assert window.steps == (5, 6)
    assert window.manifest.steps.recorded == 2
    assert window.inside("batch of") == {
        5: Counter({"batch of 5": 3}),
        6: Counter({"batch of 6": 3}),
    }
    assert window.inside("validating at")[6] == Counter({"validating at 6": 2})
    assert not window.inside("validating at")[5]


def test_resumed_training_continues_at_its_step_number(job: tuple[Path, list[Window]]) -> None:
    """A second ``fit()`` in the same process, with the same callback, continues the numbers."""
    folder, (_, window) = job
    assert noted(folder) == [8, 8, 20, 20]
    assert window.steps == (12, 14)
    assert window.inside("batch of") == {
        step: Counter({f"batch of {step}": 3}) for step in (12, 13, 14)
    }


def test_log_and_manifest_name_the_callback(job: tuple[Path, list[Window]]) -> None:
    """Both name it as the source of the steps."""
    folder, (window, _) = job
    assert window.manifest.steps.source == "Lightning's callback"
    assert "steps come from Lightning's callback" in log(folder)


def test_lightnings_phases_are_marked(job: tuple[Path, list[Window]]) -> None:
    """Windows with marks have them, other windows do not."""
    _, (marked, unmarked) = job
    for name in ("forward", "backward"):
        assert marked.inside(name)[6][name] == 3
        assert not any(unmarked.inside(name).values())
    assert marked.inside("validation")[6]["validation"] == 1


def test_the_callback_works_under_dynprof_run(tmp_path: Path) -> None:
    """Steps come from the callback, and files go to the callback's directory; also with workers."""
    script = """
    def loader():
        data = torch.randn(24, 8)
        return torch.utils.data.DataLoader(data, batch_size=2, num_workers=2)

    dynprof = dp.integrations.lightning.Dynprof("elsewhere", plugin=True)
    trainer(dynprof, Operator(4), max_epochs=1).fit(Model(), loader())
    """
    run = (sys.executable, "-c", "from dynprof.cli.app import app; app()", "run")
    (window,) = windows(tmp_path, MODEL + textwrap.dedent(script), *run)
    assert window.steps == (6, 7)
    assert window.inside("batch of")[6] == Counter({"batch of 6": 1})
    assert window.manifest.steps.source == "Lightning's callback"
    assert not (tmp_path / "elsewhere").exists()
    assert len(list((tmp_path / "prof_config/status").glob("*.json"))) == 1


@pytest.mark.parametrize("newer", ["as well", "absent"])
def test_the_package_under_its_older_name(tmp_path: Path, newer: str) -> None:
    """``pytorch_lightning``'s trainer accepts the callback, even if ``lightning`` is installed."""
    pytest.importorskip("pytorch_lightning", reason="pytorch_lightning is not installed")
    hidden = 'sys.modules["lightning"] = None\n' if newer == "absent" else ""
    script = """
    trainer(dp.integrations.lightning.Dynprof("prof_config"), Operator(3), max_epochs=1).fit(
        Model(), loader())
    """
    older = MODEL.replace("lightning.pytorch", "pytorch_lightning")
    (window,) = windows(tmp_path, hidden + older + textwrap.dedent(script))
    assert window.steps == (5, 6)
    assert window.inside("batch of") == {step: Counter({f"batch of {step}": 1}) for step in (5, 6)}


def test_a_callback_that_cannot_start_does_not_stop_the_training(tmp_path: Path) -> None:
    """If dynprof is off or cannot make its directory, each ``fit()`` trains as without it."""
    script = """
    Path("file").touch()
    for path, state in (("file", "not initialised"), ("prof_config", "disabled")):
        found = trainer(dp.integrations.lightning.Dynprof(path), max_epochs=1)
        found.fit(Model(), loader())
        assert found.global_step == 12
        assert dp.status().state == state
        os.environ["DYNPROF_DISABLE"] = "1"
    try:
        dp.integrations.lightning.Dynprof("prof_config", plugn=True)
    except TypeError as error:
        Path("noted.json").write_text(json.dumps(str(error)))
    Path("prof_config").mkdir()
    """
    assert windows(tmp_path, "import os\n" + MODEL + textwrap.dedent(script)) == []
    assert "plugn" in noted(tmp_path)
    assert list((tmp_path / "prof_config").iterdir()) == []

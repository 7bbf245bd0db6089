"""The source of steps is known and shown; a script that calls step() itself is left alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.steps.sources import SILENT_S
from tests.fake_job import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Return a new function of a module on which a source can be set."""
    (tmp_path / "some_trainer.py").write_text("def train():\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import some_trainer  # type: ignore[import-not-found]

    module: ModuleType = some_trainer
    yield lambda: module.train()
    del sys.modules["some_trainer"]


def job_on(root: Path, steps: str | float) -> Job:
    """Return a job whose session has just begun to look for steps."""
    job = Job(root / "config", steps=steps)
    job.session._steps.begin()
    return job


def test_a_window_on_the_returns_of_a_function(tmp_path: Path, trainer: Callable[[], None]) -> None:
    """The window opens and closes with them; status, log and manifest name the source."""
    job = job_on(tmp_path, "some_trainer:train")
    for _ in range(5):
        trainer()
    job.edit(active=3)
    for _ in range(6):
        trainer()
    (manifest,) = job.manifests()
    assert (manifest.steps.first, manifest.steps.last, manifest.steps.recorded) == (6, 8, 3)
    assert manifest.steps.source == "returns of some_trainer:train"
    assert job.session.status().steps_from == "returns of some_trainer:train"
    assert "steps come from returns of some_trainer:train" in job.log()


def test_a_script_that_calls_step_itself_is_left_alone(
    tmp_path: Path, trainer: Callable[[], None]
) -> None:
    """The source's count is undone; an open window closes and keeps its steps."""
    job = job_on(tmp_path, "some_trainer:train")
    for _ in range(4):
        trainer()
    job.edit(active=10)
    for _ in range(3):
        trainer()
    job.step()
    trainer()
    assert job.session.status().steps_from == "dp.step()"
    assert job.session.inbox.step == 1
    (manifest,) = job.manifests()
    assert "the script calls dp.step() itself" in manifest.reason
    assert "7 steps that it had ended no longer count" in manifest.reason
    trainer()
    assert job.session.inbox.step == 1


def test_a_resumed_job_continues_at_its_step_number(
    tmp_path: Path, trainer: Callable[[], None]
) -> None:
    """``set_state`` is no step of the script."""
    job = job_on(tmp_path, "some_trainer:train")
    trainer()
    job.session.set_step(1200)
    trainer()
    assert job.session.inbox.step == 1201
    assert job.session.status().steps_from == "returns of some_trainer:train"


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ("script", "dp.step() was not called"),
        ("nobody:train", "nobody has not been imported"),
    ],
)
def test_a_job_without_steps_gets_one_warning(tmp_path: Path, steps: str, why: str) -> None:
    """The log says it once, after a while, with the reason and the alternatives."""
    job = job_on(tmp_path, steps)
    job.session._steps.check()
    job.clock.advance(SILENT_S - 1)
    job.session._steps.check()
    assert why not in job.log()
    job.clock.advance(2)
    for _ in range(3):
        job.session._steps.check()
    log = job.log()
    assert log.count(f"no step has ended in 30 s: {why}") == 1
    assert "the main thread is in " in log
    assert "other sources of steps: " in log
    assert why in job.session.status().steps_from


def test_a_job_that_ends_without_a_step_says_why(tmp_path: Path) -> None:
    """This includes a job that ends before the log's warning."""
    job = job_on(tmp_path, "absent:train")
    job.session.end("a test")
    assert "no step has ended: absent has not been imported" in job.log()


def test_the_first_step_removes_the_warning(tmp_path: Path, trainer: Callable[[], None]) -> None:
    """The time of the step does not matter."""
    job = job_on(tmp_path, "some_trainer:train")
    job.clock.advance(SILENT_S + 1)
    job.session._steps.check()
    assert job.session.status().steps_from.startswith("no source of steps")
    trainer()
    job.session._steps.check()
    assert job.session.status().steps_from == "returns of some_trainer:train"


def test_the_end_of_the_session_ends_the_source(
    tmp_path: Path, trainer: Callable[[], None]
) -> None:
    """A fork does the same in the child: its parent's steps do not count there."""
    for end in ("end", "leave_child"):
        job = job_on(tmp_path, "some_trainer:train")
        trainer()
        if end == "end":
            job.session._steps.end()
        else:
            job.session.leave_child()
        trainer()
        assert job.session.inbox.step == 1


@pytest.mark.parametrize("steps", ["script", "auto"])
def test_a_frameworks_callback_gives_the_steps(tmp_path: Path, steps: str) -> None:
    """The framework's numbers count, and each increment ends a step; log and status say so."""
    job = job_on(tmp_path, steps)
    reached = job.session.reached
    reached("Some", 1200)
    job.edit(active=2)
    for count in (1200, 1201, 1201, 1202, 1203, 1204):  # one that only accumulates is no step
        reached("Some", count)
    (manifest,) = job.manifests()
    assert (manifest.steps.first, manifest.steps.last, manifest.steps.recorded) == (1201, 1202, 2)
    assert manifest.steps.source == "Some's callback" == job.session.status().steps_from
    assert "steps come from Some's callback" in job.log()


def test_another_training_has_numbers_of_its_own(tmp_path: Path) -> None:
    """An open window closes and keeps its steps; the steps continue."""
    job = job_on(tmp_path, "script")
    job.session.reached("Some", 7)
    job.edit(active=10)
    for count in (8, 9, 10, 0, 1):
        job.session.reached("Some", count)
    (manifest,) = job.manifests()
    assert "Some is at step 0, not at 10" in manifest.reason
    assert job.session.inbox.step == 1


def test_steps_of_the_script_count_from_the_first_one(tmp_path: Path) -> None:
    """This is a job where the optimizer may be the source too, before the source is known."""
    job = job_on(tmp_path, "auto")
    job.edit(active=2)
    for _ in range(4):
        job.step()
    (manifest,) = job.manifests()
    assert manifest.steps.source == "dp.step()" == job.session.status().steps_from


def test_a_callback_is_ignored_if_the_script_calls_step(tmp_path: Path) -> None:
    """The order does not matter; the number at which the framework resumed counts."""
    job = job_on(tmp_path, "script")
    job.session.reached("Some", 100)
    for count in (101, 102):
        job.step()
        job.session.reached("Some", count)
    assert (job.session.inbox.step, job.session.status().steps_from) == (102, "dp.step()")

    other = job_on(tmp_path / "other", "script")
    other.step()
    other.session.reached("Some", 100)
    assert (other.session.inbox.step, other.session.status().steps_from) == (1, "dp.step()")


def test_a_callback_is_ignored_if_another_source_is_requested(
    tmp_path: Path, trainer: Callable[[], None]
) -> None:
    """The log names the callback once."""
    job = job_on(tmp_path, "some_trainer:train")
    for count in (5, 6):
        trainer()
        job.session.reached("Some", count)
    assert job.session.inbox.step == 2
    assert job.log().count("Some's callback ends no steps") == 1


def test_a_failure_in_set_state_does_not_reach_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is logged."""
    job = job_on(tmp_path, "script")
    job.session.reached("Some", 3)

    def fail(step: int) -> None:
        raise RuntimeError("no counter")

    monkeypatch.setattr(job.session._costs, "renumber", fail)
    job.session.reached("Some", 0)
    assert "no counter" in job.log()

"""Requests and windows that a cancel closes, cancels, or leaves alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fake_job import Job

if TYPE_CHECKING:
    from pathlib import Path


def test_cancel_closes_the_open_window(job: Job) -> None:
    """The window closes at the next step boundary with the steps that it has."""
    job.edit(active=100)
    job.step(5)
    job.edit(cancel=True)
    job.step()
    (manifest,) = job.manifests()
    assert (manifest.complete, manifest.steps.recorded) == (False, 5)
    assert manifest.reason == "cancelled by request 2"
    job.step()
    assert not job.session.inbox.due


def test_cancel_cancels_a_waiting_request(job: Job) -> None:
    """A request that waits for its step is dropped; without one, the log says so."""
    job.edit(start_step=50)
    job.edit(cancel=True)
    job.step(60)
    assert job.backend.recordings == []
    job.edit(cancel=True)
    assert "nothing is open or waiting; a save without cancel requests a window" in job.log()


def test_a_remaining_cancel_is_answered_once(job: Job) -> None:
    """A changed next save is a request, with a remark; an unchanged one cancels again."""
    job.edit(cancel=True)
    job.edit(cancel=True, active=2)
    assert job.state == "waiting"
    (remark,) = job.session.status().remarks
    assert remark.startswith("line 1, column 2, /cancel: the previous save had it too")
    job.step(5)
    assert [m.steps.recorded for m in job.manifests()] == [2]
    job.edit(cancel=True, active=100)
    job.step(2)
    job.edit(cancel=True, active=100)
    job.step()
    assert job.manifests()[-1].reason == "cancelled by request 4"


def test_a_cancel_takes_effect_after_a_save_without_one(job: Job) -> None:
    """A newly set cancel always cancels; a refused save does not."""
    job.edit(active=100)
    job.step(2)
    job.edit(active=0, cancel=True)
    assert job.state == "recording"
    job.edit(active=3, cancel=True)
    job.step()
    assert job.manifests()[-1].reason == "cancelled by request 3"


def test_a_cancel_from_before_the_start_has_no_effect(tmp_path: Path) -> None:
    """A job that restarts with an old cancel treats the next change as a request."""
    (tmp_path / "profiler_config.json").write_text('{"cancel": true, "active": 1}')
    job = Job(tmp_path)
    job.edit(cancel=True, active=2)
    job.step(4)
    assert [m.steps.recorded for m in job.manifests()] == [2]


def test_a_script_that_starts_a_window_gets_one(tmp_path: Path) -> None:
    """``start()`` requests a window, so a cancel in its file has no effect, with a remark."""
    path = tmp_path / "profiler_config.json"
    path.write_text('{"cancel": true}')
    job = Job(tmp_path)
    job.session.start(None)
    job.step(2)
    (manifest,) = job.manifests()
    assert manifest.complete
    assert "/cancel: has no effect: the script itself requests" in manifest.remarks[0]


def test_a_cancel_does_not_reach_the_next_window(job: Job) -> None:
    """A request to close ends with its window."""
    job.edit(active=1)
    job.step()
    job.edit(cancel=True)
    job.step()
    job.edit(active=3)
    job.step(5)
    assert [m.complete for m in job.manifests()] == [True, True]

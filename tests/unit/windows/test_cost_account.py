"""The cost of a window for the job, in its manifest."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.report.contents import NOT_MEASURABLE, _recorded
from dynprof.captures.manifest import Manifest, load_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fake_job import Job


def test_the_cost_is_measured(job: Job) -> None:
    """Step times before, during and after equal those of the clock."""
    for _ in range(4):
        job.session._tick()
        job.step(100)
    job.edit(active=2)
    job.clock.advance(-1)  # the pause for the edit is not the loop's
    job.step(3)
    job.step(1100)
    job.session._tick()
    (manifest,) = job.manifests()
    assert manifest.cost.step_before_ms == pytest.approx(10)
    assert manifest.cost.step_during_ms == pytest.approx(10)
    assert manifest.cost.step_after_ms == pytest.approx(10)


def test_the_cost_of_a_slow_save(slow_job: Job) -> None:
    """30 slow steps of 15 ms during the save, instead of 10 ms, cost 150 ms in total."""
    job = slow_job
    for _ in range(4):
        job.session._tick()
        job.step(100)
    job.edit(active=2)
    job.clock.advance(-1)  # the pause for the edit is not the loop's
    job.step(3)
    assert job.state == "saving"
    for _ in range(30):
        job.clock.advance(0.005)
        job.step()
    job.saving.finish()
    job.step(1100)
    job.session._tick()
    (manifest,) = job.manifests()
    assert manifest.cost.step_saving_ms == pytest.approx(15, rel=0.05)
    assert manifest.cost.step_after_ms == pytest.approx(10)
    assert manifest.cost.extra_ms == pytest.approx(150, rel=0.1)


def test_the_cost_is_added_to_a_manifest_changed_by_analysis(job: Job) -> None:
    """A manifest that the analysis has changed keeps its left_out, and gets the cost."""
    job.edit(active=2)
    job.step(4)
    (path,) = job.root.glob("step_*/info/rank_0.info.json")
    left_out = {"l2_cache.csv": "no device worked"}
    load_manifest(path).model_copy(update={"left_out": left_out}).save(path)
    job.step(1100)
    job.session._tick()
    (manifest,) = job.manifests()
    assert manifest.left_out == left_out
    assert manifest.cost.step_after_ms is not None


@pytest.mark.parametrize("taken", ["folder", "manifest"])
def test_a_capture_removed_before_its_cost_is_counted_is_no_error(job: Job, taken: str) -> None:
    """Moving or deleting a fresh capture causes no error, and no file of it returns."""
    job.edit(active=2)
    job.step(4)
    (manifest,) = job.root.glob("step_*/info/rank_0.info.json")
    if taken == "folder":
        shutil.rmtree(manifest.parent.parent)
    else:
        manifest.unlink()
    job.step(1100)
    job.session._tick()
    assert not manifest.exists()
    assert job.session.status().last_error is None
    assert "failed" not in job.log()


def _refused(_: Manifest, path: Path) -> None:
    raise PermissionError(13, "Permission denied", str(path))


def test_a_failure_every_second_is_logged_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that can no longer be written does not fill the log."""
    job.edit(active=1)
    job.step(2)
    monkeypatch.setattr(Manifest, "save", _refused)
    for _ in range(5):
        job.step(1100)
        job.session._tick()
    assert job.log().count("Traceback") == 1
    monkeypatch.undo()
    shutil.rmtree(job.root)
    job.root.mkdir()
    job.edit(active=1)
    job.step(2)
    shown = [job.shown(path) for path in job.root.rglob("*.info.json")]
    assert [job.session.status().last_capture] == shown


def test_a_negative_cost_is_not_measurable(slow_job: Job) -> None:
    """Steps that were slow before the window hide its cost."""
    job = slow_job
    for _ in range(4):
        job.session._tick()
        job.step(100)
        job.clock.advance(3)
    job.edit(active=2)
    job.step(3)
    job.saving.finish()
    job.step(1100)
    job.session._tick()
    (manifest,) = job.manifests()
    assert (manifest.cost.step_before_ms or 0) > (manifest.cost.step_after_ms or 0) > 0
    assert manifest.cost.extra_ms is None
    assert manifest.cost.is_hidden
    about = dict(_recorded(manifest))
    assert about["lost by the job in all"] == NOT_MEASURABLE
    old = manifest.model_copy(update={"cost": manifest.cost.model_copy(update={"extra_ms": -9070})})
    assert dict(_recorded(old))["lost by the job in all"] == NOT_MEASURABLE
    young = manifest.with_costs(step_saving_ms=None, step_after_ms=None, extra_ms=None)
    assert dict(_recorded(young))["lost by the job in all"] == ""

"""A window stays within the limits of its config."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fake_job import Job

if TYPE_CHECKING:
    from pathlib import Path


def test_max_seconds_closes_early(job: Job) -> None:
    """At the first step end after the limit the window closes with what it has."""
    job.edit(active=100, limits={"max_seconds": 0.035})
    job.step(10)
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 4
    assert "limits.max_seconds is 0.035" in manifest.reason


def test_max_memory_closes_early(tmp_path: Path) -> None:
    """Asked after its first step, and then every 50 ms, which are five steps here."""
    job = Job(tmp_path, memory_mb=[1000, 1010, 1020, 1031])
    job.edit(active=100, limits={"max_memory_mb": 30})
    job.step(20)
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 11
    assert "grew by 31 MB" in manifest.reason


def test_what_could_not_be_saved_is_closed_early(tmp_path: Path) -> None:
    """Saving takes a multiple of what was recorded, of which half as much is free at the most."""
    job = Job(tmp_path, memory_mb=[1000, 1003, 1006, 1009], free_mb=1000)
    job.backend.takes = 70.0
    job.edit(active=100)
    job.step(20)
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 11
    assert manifest.reason == (
        "the process grew by 9 MB; saving that may take 621 MB more, and 1,000 MB are free; "
        "limits.max_memory_mb null lets it go on"
    )


@pytest.mark.parametrize("free_mb", [1300, 1e6])
def test_what_can_be_saved_goes_on(tmp_path: Path, free_mb: float) -> None:
    """All of it is recorded."""
    job = Job(tmp_path, memory_mb=[1000, 1003, 1006, 1009], free_mb=free_mb)
    job.backend.takes = 70.0
    job.edit(active=15)
    job.step(20)
    (manifest,) = job.manifests()
    assert (manifest.steps.recorded, manifest.reason) == (15, "")


def test_who_lifts_the_limit_of_memory_lifts_that_too(tmp_path: Path) -> None:
    """It is theirs to decide."""
    job = Job(tmp_path, memory_mb=[1000, 2000, 3000], free_mb=10)
    job.backend.takes = 70.0
    job.edit(active=15, limits={"max_memory_mb": None})
    job.step(20)
    (manifest,) = job.manifests()
    assert manifest.complete


def test_a_disk_that_filled_up_while_waiting_refuses(job: Job) -> None:
    """The disk is looked at again before the window opens."""
    job.edit(start_step=5, limits={"min_free_disk_mb": 0.001})
    job.session.inbox.free_disk_mb = 0.0
    job.step(6)
    assert job.backend.recordings == []
    assert "MB are free now" in job.session.status().problems[0]

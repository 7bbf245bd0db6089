"""A window stays within the limits of its config."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def test_a_disk_that_filled_up_while_waiting_refuses(job: Job) -> None:
    """The disk is looked at again before the window opens."""
    job.edit(start_step=5, limits={"min_free_disk_mb": 0.001})
    job.session.inbox.free_disk_mb = 0.0
    job.step(6)
    assert job.backend.recordings == []
    assert "MB are free now" in job.session.status().problems[0]

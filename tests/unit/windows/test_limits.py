"""A window stays within the limits of its config."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.fake_job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.captures.manifest import Manifest


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


def job_of_many_events(
    path: Path, free_mb: float, in_use_mb: list[float | None], **limits: float | None
) -> Manifest:
    """Return the manifest of 400 steps of 10 ms whose events take 70 times as much to save."""
    job = Job(path, memory_mb=[1000, *[1009] * 99], free_mb=free_mb, in_use_mb=in_use_mb)
    job.backend.takes = 70.0
    job.edit(active=400, limits=limits)
    job.step(410)
    (manifest,) = job.manifests()
    return manifest


def test_what_could_not_be_saved_is_closed_early(tmp_path: Path) -> None:
    """By what is allocated at ends of steps, first after a second, then every quarter of one."""
    manifest = job_of_many_events(tmp_path, 1000, [500, 501, 502.5, 504])
    assert manifest.steps.recorded == pytest.approx(151, abs=2)
    assert re.fullmatch(
        "its events take [78] MB; saving them may take [56][0-9]{2} MB more, and 1,000 MB are "
        "free; limits.max_memory_mb null lets it go on",
        manifest.reason,
    )


@pytest.mark.parametrize("in_use_mb", [[None] * 9, [500] * 9])
def test_what_it_grew_by_counts_where_the_allocator_tells_nothing(
    tmp_path: Path, in_use_mb: list[float | None]
) -> None:
    """As where there is none of glibc's, or another one has taken its place."""
    manifest = job_of_many_events(tmp_path, 1000, in_use_mb)
    assert 90 < manifest.steps.recorded < 140
    assert "its events take 9 MB" in manifest.reason


@pytest.mark.parametrize("free_mb", [4000, 1e6])
def test_what_can_be_saved_goes_on(tmp_path: Path, free_mb: float) -> None:
    """All of it is recorded."""
    grows: list[float | None] = [500 + look for look in range(12)]
    manifest = job_of_many_events(tmp_path, free_mb, grows)
    assert (manifest.steps.recorded, manifest.reason) == (400, "")


def test_who_lifts_the_limit_of_memory_lifts_that_too(tmp_path: Path) -> None:
    """It is theirs to decide."""
    assert job_of_many_events(tmp_path, 10, [500, 600, 700], max_memory_mb=None).complete


def test_a_disk_that_filled_up_while_waiting_refuses(job: Job) -> None:
    """The disk is looked at again before the window opens."""
    job.edit(start_step=5, limits={"min_free_disk_mb": 0.001})
    job.session.inbox.free_disk_mb = 0.0
    job.step(6)
    assert job.backend.recordings == []
    assert "MB are free now" in job.session.status().problems[0]

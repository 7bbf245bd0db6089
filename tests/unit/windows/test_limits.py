"""A window stays within the limits of its config."""

from __future__ import annotations

import random
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from dynprof.windows import events_memory
from tests.fake_job import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.windows.this_process import ThisProcess


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


@pytest.fixture(autouse=True)
def looks_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a busy machine looks less often."""
    monkeypatch.setattr(events_memory, "COST", 0.0)


def job_of_many_events(
    path: Path, free_mb: float, in_use_mb: list[float | None], **limits: float | None
) -> Manifest:
    """Return the manifest of 400 steps of 10 ms whose events take 71 times as much to save."""
    resident = [1000 + 0.5 * look for look in range(90)]
    job = Job(path, memory_mb=resident, free_mb=free_mb, in_use_mb=in_use_mb)
    job.backend.takes = 71.0
    job.edit(active=400, limits=limits)
    job.step(410)
    (manifest,) = job.manifests()
    return manifest


def growing(by_mb: float, batch: Callable[[int], float] = lambda _: 0.0) -> list[float | None]:
    """Return what is allocated at each look, which is at every fifth step."""
    return [500 + by_mb * look + batch(look) for look in range(90)]


def test_what_could_not_be_saved_is_closed_early(tmp_path: Path) -> None:
    """By what is allocated at ends of steps: 0.2 MB more at each of them, so 7.1 MB at the 36th."""
    manifest = job_of_many_events(tmp_path, 4000, growing(1.0))
    assert manifest.steps.recorded == pytest.approx(2000 / 70 / 0.2, abs=5)
    assert re.fullmatch(
        r"memory grows from step to step, by (28|29) MB so far, as events make it grow; to save so "
        r"many may take [12],[09]\d\d MB, and 4,000 MB are free; limits.max_memory_mb null lets "
        r"it go on",
        manifest.reason,
    )
    manifest = job_of_many_events(tmp_path / "less", 1000, growing(1.0))
    assert manifest.steps.recorded == pytest.approx(500 / 70 / 0.2, abs=6)


@pytest.mark.parametrize("in_use_mb", [[None] * 90, [500] * 90, [500] * 20 + [None] * 70])
def test_resident_memory_counts_where_the_allocator_tells_nothing(
    tmp_path: Path, in_use_mb: list[float | None]
) -> None:
    """As where there is none of glibc's, another one has taken its place, or it is slow."""
    manifest = job_of_many_events(tmp_path, 2000, in_use_mb)
    assert manifest.steps.recorded == pytest.approx(1000 / 70 / 0.1, abs=5)


@pytest.mark.parametrize("free_mb", [12_000, 1e6])
def test_what_can_be_saved_goes_on(tmp_path: Path, free_mb: float) -> None:
    """All of it is recorded."""
    manifest = job_of_many_events(tmp_path, free_mb, growing(1.0))
    assert (manifest.steps.recorded, manifest.reason) == (400, "")


@pytest.mark.parametrize("seed", range(20))
def test_batches_that_differ_are_no_events(tmp_path: Path, seed: int) -> None:
    """What the training has at the ends of steps goes up and down, whatever its sizes are."""
    chance = random.Random(seed)  # noqa: S311
    batches = growing(0.0, lambda _: chance.choice([chance.random(), chance.random() < 0.1]) * 300)
    assert job_of_many_events(tmp_path, 4000, batches).steps.recorded == 400


@pytest.mark.parametrize("seed", range(10))
def test_batches_that_differ_hide_no_events(tmp_path: Path, seed: int) -> None:
    """What is told is what they most likely are, not the least that they can be."""
    chance = random.Random(seed)  # noqa: S311
    batches = growing(0.5, lambda _: chance.uniform(0, 20))
    recorded = job_of_many_events(tmp_path, 4000, batches).steps.recorded
    assert recorded < 1.3 * 2000 / 70 / 0.1


def test_fewer_than_eight_looks_tell_nothing(tmp_path: Path) -> None:
    """Whatever they show: seven of them end with the 31st step."""
    manifest = job_of_many_events(tmp_path, 300, growing(30.0))
    assert manifest.steps.recorded == 36


def test_a_buffer_that_begins_to_fill_later_is_told_no_larger_than_it_is() -> None:
    """Its growth is not that of the steps before, of which there are a thousand."""
    memory, told = events_memory.EventsMemory(), []
    for at_ms in range(1, 2000):
        in_use_mb = 500 + max(0, at_ms - 900) * 0.05
        process = cast("ThisProcess", SimpleNamespace(in_use_mb=lambda mb=in_use_mb: mb))
        told.append(memory.look(process, at_ms, at_ms / 1000, 1000.0))
    assert 50 < max(told) <= 55


@pytest.mark.parametrize("at", [1, 5, 20])
def test_what_the_training_frees_hides_no_events(tmp_path: Path, at: int) -> None:
    """They are seen again as they go on growing: before there are twice as many as may be."""
    freed = growing(1.0, lambda look: 400 * (look < at))
    manifest = job_of_many_events(tmp_path, 4000, freed)
    assert manifest.steps.recorded < 2 * 2000 / 70 / 0.2


@pytest.mark.parametrize("most", [8, 20, 256])
@pytest.mark.parametrize("period", [7, 16, 40])
def test_what_fills_and_is_emptied_is_told_no_larger_than_it_is(
    monkeypatch: pytest.MonkeyPatch, most: int, period: int
) -> None:
    """However long the window is, and of however many looks it forgets some."""
    monkeypatch.setattr(events_memory, "MOST", most)
    told = []
    memory = events_memory.EventsMemory()
    for step in range(1, 2000):
        in_use_mb = 500 + 100 * (step % period) / period
        process = cast("ThisProcess", SimpleNamespace(in_use_mb=lambda mb=in_use_mb: mb))
        told.append(memory.look(process, step, step + 1.0, 1000.0))
    assert max(told) < 150
    assert len(memory._looks) <= most + 1


def test_who_lifts_the_limit_of_memory_lifts_that_too(tmp_path: Path) -> None:
    """It is theirs to decide."""
    assert job_of_many_events(tmp_path, 10, growing(100.0), max_memory_mb=None).complete


def test_a_disk_that_filled_up_while_waiting_refuses(job: Job) -> None:
    """The disk is looked at again before the window opens."""
    job.edit(start_step=5, limits={"min_free_disk_mb": 0.001})
    job.session.inbox.free_disk_mb = 0.0
    job.step(6)
    assert job.backend.recordings == []
    assert "MB are free now" in job.session.status().problems[0]

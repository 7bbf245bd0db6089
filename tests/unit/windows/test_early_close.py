"""A window stays within the limits of its config."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

import pytest

from dynprof.backends.base import Load
from dynprof.windows import cost_account, early_close
from tests.fake_job import Job

if TYPE_CHECKING:
    from pathlib import Path


def test_max_seconds_closes_early(job: Job) -> None:
    """The window closes at the first step end after the limit, with its steps so far."""
    job.edit(active=100, limits={"max_seconds": 0.035})
    job.step(10)
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 4
    assert "limits.max_seconds is 0.035" in manifest.reason


def test_a_window_without_further_steps_closes_after_its_seconds_and_a_minute(job: Job) -> None:
    """The window waits a minute for another step after its time limit."""
    job.edit(active=100, limits={"max_seconds": 3})
    job.step(4)
    job.backend.recordings[0].bound_to_thread = False
    for seconds, state in ((5, "recording"), (54, "recording"), (2, "idle")):
        job.clock.advance(seconds)
        job.session._loop.check()
        assert job.state == state
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 3
    assert "limits.max_seconds is 3, and no step has ended for 61 s" in manifest.reason


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_jumps_changes_no_window(job: Job, days: int) -> None:
    """A clock change of a day affects neither limits, times nor the next request.

    Only the machine's clock jumps; the monotonic one does not.
    """
    job.edit(active=20, limits={"max_seconds": 60})
    job.step(10)
    job.clock.wall += days * 86_400
    job.step(20)
    job.edit(active=2)
    job.step(3)
    first, second = job.manifests()
    assert (first.complete, second.complete) == (True, True)
    assert (first.cost.step_during_ms, first.steps.recorded) == (10, 20)


def test_max_memory_closes_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is checked after the first step; if a check is slow, every 50 ms or five steps."""
    monkeypatch.setattr(early_close, "CHECK_EVERY_S", 0.05)
    monkeypatch.setattr(early_close, "REST_FACTOR", 1e9)
    job = Job(tmp_path, memory_mb=[1000, 1010, 1020, 1031])
    job.edit(active=100, limits={"max_memory_mb": 30})
    job.step(20)
    (manifest,) = job.manifests()
    assert manifest.steps.recorded == 11
    assert "grew by 31 MB" in manifest.reason


@pytest.fixture(autouse=True)
def looks_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check at every step, as if a step took longer than the interval of checks."""
    monkeypatch.setattr(early_close, "CHECK_EVERY_S", 0.0)
    monkeypatch.setattr(early_close, "REST_FACTOR", 0.0)


def job_of_many_events(path: Path, free_mb: float = 1e6, **asked: float | None) -> Job:
    """Return a job with a request for 20 steps, each with 1,000 events of 1 kB."""
    job = Job(path, free_mb=free_mb)
    opens_at = job.session.inbox.step + 1
    job.backend.loads = lambda: Load(
        1_000 * (job.session.inbox.step - opens_at), job.session.inbox.step - opens_at
    )
    job.edit(active=20, limits=asked)
    job.step(40)
    return job


def test_a_window_has_no_more_events_than_its_limit(tmp_path: Path) -> None:
    """The window closes before the step that would exceed it; manifest, log and status say so."""
    job = job_of_many_events(tmp_path, max_events=7_500)
    (manifest,) = job.manifests()
    assert (manifest.steps.recorded, manifest.complete) == (7, False)
    assert manifest.reason == "about 7,000 events are recorded, limits.max_events is 7,500"
    assert manifest.cost.events == 7_000
    assert manifest.reason in job.log()
    (answer,) = job.session.status().edits
    assert answer.cut == manifest.reason


def test_a_first_step_with_too_many_events_is_kept(tmp_path: Path) -> None:
    """A window has at least one whole step."""
    (manifest,) = job_of_many_events(tmp_path, max_events=10).manifests()
    assert manifest.steps.recorded == 1


@pytest.mark.parametrize("most", [0, 20_000])
def test_fewer_events_or_no_limit_close_nothing(tmp_path: Path, most: int) -> None:
    """The window has its 20 steps."""
    (manifest,) = job_of_many_events(tmp_path, max_events=most).manifests()
    assert (manifest.steps.recorded, manifest.reason) == (20, "")


def test_the_first_steps_give_an_estimate_of_the_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The estimate is in the log and for ``arm --wait``; the next such window has it earlier."""
    monkeypatch.setattr(cost_account, "EVENT_US", 500.0)
    job = job_of_many_events(tmp_path, max_events=7_500)
    (answer,) = job.session.status().edits
    assert answer.expected == (
        "a step records about 1,000 events; 7 steps take about 3.5 s to save on a free core, and "
        "0.2 MB; limits.max_events (7,500) ends the window after them"
    )
    assert job.log().count(answer.expected) == 1
    monkeypatch.setattr(cost_account, "MIN_REPORTED_SAVE_S", 0.0)
    job.edit(active=3)
    job.step(1)
    assert "; a step records about 1,000 events; 3 steps take about" in job.log()


def test_max_seconds_bounds_the_expected_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 10 ms."""
    monkeypatch.setattr(cost_account, "EVENT_US", 500.0)
    job = job_of_many_events(tmp_path, max_seconds=0.1)
    (answer,) = job.session.status().edits
    assert re.match(
        r"a step records about 1,000 events; (9|10|11) steps take .*; "
        r"limits\.max_seconds \(0\.1\) ends the window after them",
        answer.expected,
    )


def test_a_window_closes_before_saving_takes_half_of_the_free_memory(tmp_path: Path) -> None:
    """The window closes at the last step end before its capture would take that much."""
    (manifest,) = job_of_many_events(tmp_path, 10.0).manifests()
    assert (manifest.steps.recorded, bool(manifest.trace)) == (5, True)
    assert manifest.reason == (
        "to save the 5,000 events so far takes about 5 MB of memory, and 10 MB are free, of which "
        "saving may take half, the next steps included; limits.max_memory_mb null lifts this limit"
    )


def test_a_window_without_memory_to_save_is_discarded(tmp_path: Path) -> None:
    """Nothing is collected: a manifest has the reason, and the next window opens."""
    job = job_of_many_events(tmp_path, 1.2)
    (manifest,) = job.manifests()
    assert (manifest.trace, manifest.complete) == (None, False)
    assert manifest.reason == (
        "to save its 1,000 events would take about 1 MB of memory, and 1 MB are free, of which "
        "saving may take 80%; nothing is kept; ask for fewer steps, or without stacks, shapes "
        "and memory"
    )
    (recording,) = job.backend.recordings
    assert "discard" in recording.calls
    assert not {"close", "save"} & {*recording.calls}
    job.free_mb = 1e6
    job.edit(active=1)
    job.step(2)
    assert job.manifests()[-1].complete


def test_no_memory_limit_also_allows_a_large_save(tmp_path: Path) -> None:
    """The user may decide that."""
    (manifest,) = job_of_many_events(tmp_path, 0.1, max_memory_mb=None).manifests()
    assert manifest.complete


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    ("events", "free_mb", "reason"),
    [
        (1_999, 1e6, ""),
        (2_002, 1e6, "about 2,000 events are recorded, limits.max_events is 1,000"),
        (10, 200_001.0, ""),
        (10, 199_999.0, "199,999 MB of memory are left of 1,000,000 that were free as the window"),
    ],
)
def test_a_step_that_records_too_much_is_not_waited_for(
    tmp_path: Path, *, bound: bool, events: int, free_mb: float, reason: str
) -> None:
    """This is at twice the limit, or at low memory; a bound window is closed by its own thread."""
    job = Job(tmp_path)
    job.edit(active=20, limits={"max_events": 1_000})
    job.step(1)
    job.backend.recordings[0].bound_to_thread = bound
    job.backend.loads = lambda: Load(events, 1.0)
    job.free_mb = free_mb
    looking = threading.Thread(target=job.session._loop.check)
    looking.start()
    looking.join()
    closed = [one.reason for one in job.manifests()] or [job.session.inbox.close_reason]
    assert job.state == ("recording" if bound or not reason else "idle")
    assert closed[0].startswith(reason) if reason else closed == [""]


def test_a_disk_that_filled_up_while_waiting_refuses(job: Job) -> None:
    """The disk is checked again before the window opens."""
    job.edit(start_step=5, limits={"min_free_disk_mb": 0.001})
    job.session.inbox.free_disk_mb = 0.0
    job.step(6)
    assert job.backend.recordings == []
    assert "MB are free now" in job.session.status().problems[0]

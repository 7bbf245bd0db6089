"""The request for baselines: when it repeats, when one is skipped, and how it ends."""

from __future__ import annotations

import json
from logging import LogRecord
from typing import TYPE_CHECKING, Any

from dynprof.requests.edit_detection import read
from dynprof.runtime.layout import BASELINES_NAME
from tests.fake_job import Job

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.requests.request import Request

HALF_AN_HOUR_S = 1800.0


def wait(job: Job, seconds: float) -> None:
    """Let time pass, then do what the watcher's thread does when it wakes up."""
    job.clock.advance(seconds)
    job.step()
    if edit := job.session._repetition.due():
        job.session.handle(edit)


def waiting(job: Job) -> Request:
    """Return the waiting request."""
    found = job.session.inbox.waiting
    assert found
    return found


def requests(job: Job) -> list[tuple[int, bool]]:
    """Return the number of each saved window, and whether it is a baseline."""
    return [(one.request.number, one.is_baseline) for one in job.manifests()]


def test_a_request_with_an_interval_repeats(job: Job) -> None:
    """Its window opens now and after each interval, with the settings of its save."""
    job.edit(every={"minutes": 30}, active=2)
    job.step(5)
    wait(job, HALF_AN_HOUR_S - 60)
    assert requests(job) == [(1, True)]
    wait(job, 60)
    job.step(5)
    wait(job, 3 * HALF_AN_HOUR_S + 1)  # the process was stopped: one baseline, not three
    job.step(5)
    assert requests(job) == [(1, True), (2, True), (3, True)]
    assert {one.steps.recorded for one in job.manifests()} == {2}
    assert len({one.request.sha256 for one in job.manifests()}) == 1


def test_steps_can_be_the_interval(job: Job) -> None:
    """A baseline is due when the counter has reached it."""
    job.edit(every={"steps": 100})
    job.step(50)
    wait(job, HALF_AN_HOUR_S)
    assert len(job.manifests()) == 1
    assert job.session.status().baselines == "baseline every 100 steps, next at step 100; 1 kept"
    job.step(60)
    wait(job, 1)
    job.step(2)
    assert len(job.manifests()) == 2


def test_another_request_is_served_and_baselines_continue(job: Job) -> None:
    """A save without an interval is one window with its own settings."""
    job.edit(every={"minutes": 30}, active=2)
    job.step(5)
    job.edit(active=4)
    job.step(6)
    wait(job, HALF_AN_HOUR_S)
    job.step(5)
    assert requests(job) == [(1, True), (2, False), (3, True)]
    assert [one.steps.recorded for one in job.manifests()] == [2, 4, 2]


def test_a_baseline_is_skipped_while_a_request_is_under_way(tmp_path: Path) -> None:
    """It neither replaces a request nor waits for a slow save; the log has one line."""
    job = Job(tmp_path / "job", hold=True)
    job.edit(every={"minutes": 30}, active=1)
    job.step(4)
    assert job.state == "saving"
    job.log()
    wait(job, HALF_AN_HOUR_S)
    (line,) = job.log().splitlines()
    assert line.startswith("a baseline was skipped: request 1 is under way; baseline every 30 min")
    job.saving.finish()
    job.step(2)
    job.edit(start_step=1000)
    job.log()
    wait(job, HALF_AN_HOUR_S)
    assert "skipped: request 2 is under way" in job.log()
    assert waiting(job).number == 2


def test_a_full_disk_skips_a_baseline(job: Job) -> None:
    """The limit of the request holds for each; the next one is due after the interval."""
    job.edit(every={"minutes": 30}, active=1, limits={"min_free_disk_mb": 1})
    job.step(3)
    raw = json.dumps({"every": {"minutes": 30}, "limits": {"min_free_disk_mb": 1e12}}).encode()
    job.session._repetition.begin(raw, _every(raw))
    job.log()
    wait(job, HALF_AN_HOUR_S)
    (line, _) = job.log().splitlines()
    assert line == "request 2: refused, nothing changes"
    assert job.session.inbox.waiting is None
    assert job.session.status().baselines


def _every(raw: bytes) -> Any:
    from dynprof.config import parse_config

    return parse_config(raw).config.every


def levels(job: Job) -> list[str]:
    """Return the new log lines with their levels."""
    queue, found = job.session._journal._lines, []
    while not queue.empty():
        record = queue.get()
        if isinstance(record, LogRecord):
            found.append(f"{record.levelname} {record.getMessage()}")
    return found


def test_cancel_ends_baselines(job: Job) -> None:
    """No further one is due, in this run or in the next."""
    job.edit(every={"minutes": 30}, active=1)
    job.step(3)
    assert (job.root / BASELINES_NAME).exists()
    job.edit(cancel=True, every={"minutes": 30}, active=1)
    (line,) = [line for line in levels(job) if "cancel: " in line]
    again = f"to begin them again, run dynprof arm {job.root} --every 30m with"
    assert line.startswith(f"WARNING request 2: cancel: ends the baselines (every 30 min); {again}")
    wait(job, 2 * HALF_AN_HOUR_S)
    assert requests(job) == [(1, True)]
    assert not (job.root / BASELINES_NAME).exists()
    assert job.session.status().baselines == ""


def test_the_next_run_continues_what_was_requested(job: Job) -> None:
    """Baselines keep the settings of their save, though the config is that of a later one."""
    job.edit(every={"minutes": 30}, active=2)
    job.step(5)
    (job.root / "profiler_config.json").write_text('{"active": 7}')
    again = Job(job.root)
    again.session._resume_baselines()
    wait(again, HALF_AN_HOUR_S - 1)
    assert again.session.inbox.waiting is None
    wait(again, 1)
    assert waiting(again).config.active == 2


def test_the_config_at_the_start_can_ask_for_baselines(tmp_path: Path) -> None:
    """The first is due after an interval, not in the first steps; a cancel in it asks for none."""
    root = tmp_path / "job"
    root.mkdir()
    config = {"every": {"minutes": 30}, "active": 3}
    (root / "profiler_config.json").write_text(json.dumps(config))
    job = Job(root)
    job.session._resume_baselines()
    wait(job, HALF_AN_HOUR_S)
    assert waiting(job).config.active == 3
    assert read(root / BASELINES_NAME)
    (root / "profiler_config.json").write_text(json.dumps({**config, "cancel": True}))
    over = Job(root)
    over.session._resume_baselines()
    assert over.session.status().baselines == ""
    assert not (root / BASELINES_NAME).exists()


def test_the_scripts_own_window_is_no_baseline(job: Job) -> None:
    """``start()`` opens one window, and says that the interval has no effect."""
    (job.root / "profiler_config.json").write_text('{"every": {"minutes": 30}, "active": 1}')
    job.session.start(None)
    job.step(3)
    assert requests(job) == [(1, False)]
    assert "/every: has no effect: the script itself requests this window" in job.log()
    assert job.session.status().baselines == ""


def test_a_kept_cancel_does_not_end_the_repetition(job: Job) -> None:
    """A save that keeps an old cancel and asks for baselines is a request, each time."""
    job.edit(cancel=True)
    job.edit(cancel=True, every={"minutes": 30}, active=1)
    job.step(3)
    for _ in range(2):
        wait(job, HALF_AN_HOUR_S)
        job.step(3)
    assert len(job.manifests()) == 3


def test_a_save_of_the_watch_does_not_begin_baselines_again(job: Job) -> None:
    """It requests no window, though the config still has the interval; baselines go on."""
    asked = {"every": {"minutes": 30}, "active": 1}
    job.edit(**asked)
    job.step(3)
    wait(job, HALF_AN_HOUR_S - 60)
    job.edit(**asked, watch={"longer_than_ms": 1e6})
    job.edit(**asked, watch={})
    job.step(3)
    assert requests(job) == [(1, True)]
    wait(job, 60)
    job.step(3)
    assert [repeats for _, repeats in requests(job)] == [True, True]

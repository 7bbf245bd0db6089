"""The step history of real jobs: a change of the pace, ``kill -9``, forked children."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from dynprof.errors import CaptureError
from dynprof.journal.history import BREAK, HistoryRecord, load_history
from tests.integration.running import LOOP, RunningJob, wait_for
from tests.processes import DYNPROF, run

if TYPE_CHECKING:
    from pathlib import Path

SLOWED = """
import time, dynprof as dp
from dynprof.journal import history, pace_changes
from pathlib import Path
pace_changes._RULES = (pace_changes._RULES[0]._replace(seconds=15.0),)  # not a minute
history.MEDIAN_S = 10
dp.init("prof_config")
slow = Path("slow")
while True:
    time.sleep(0.07 if slow.exists() else 0.022)
    dp.step()
"""
"""A job that steps more slowly once a file exists; 15 s are enough to find it."""
FORKING = """
import os, time, dynprof as dp
dp.init("prof_config")
for step in range(10**9):
    time.sleep(0.01)
    dp.step()
    if step == 100 and not (child := os.fork()):
        for _ in range(300):
            time.sleep(0.01)
            dp.step()
        os._exit(0)
    if step == 100:
        assert os.waitpid(child, 0)[1] == 0
        open("forked", "w").close()
"""


def written(job: RunningJob, rank: int = 0) -> HistoryRecord:
    """Wait until this very process has written its history; return it."""

    def found() -> HistoryRecord | None:
        try:
            record = load_history(job.root / "status" / f"rank_{rank}.history")
        except (FileNotFoundError, CaptureError):
            return None
        return record if record.pid == job.process.pid else None

    return wait_for("the step history", found)


def logged(job: RunningJob, text: str, rank: int = 0) -> str:
    """Wait for the only line of a log with a text; the files are written before it."""

    def found() -> str | None:
        lines = [line for line in job.log(rank).splitlines() if text in line]
        assert len(lines) <= 1
        return lines[0] if lines else None

    return wait_for(f"a line with {text}", found)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_change_of_the_pace_is_logged_and_shown_with_its_step(tmp_path: Path) -> None:
    """Two ranks change together: one line on the screen; the next window is compared."""
    jobs = [RunningJob(tmp_path, SLOWED, RANK=str(rank), WORLD_SIZE="2") for rank in range(2)]
    with jobs[0], jobs[1]:
        before = [
            job.when("steps of 40 s", lambda s: s.step > 1800, rank)
            for rank, job in enumerate(jobs)
        ]
        assert not any(one.pace_change for one in before)
        (tmp_path / "slow").touch()
        steps = [
            status.step if (status := job.status(rank)) else 0 for rank, job in enumerate(jobs)
        ]
        for rank, job in enumerate(jobs):
            status = job.when("the change", lambda s: s.pace_change is not None, rank)
            change = status.pace_change
            assert change
            assert steps[rank] - 30 <= change.step <= steps[rank] + 300  # a status is up to 5 s old
            assert change.is_slower
            assert change.after_ms > 65 > change.before_ms > 21
            assert f"(step {change.step:,})" in logged(job, "the pace changed", rank)
            assert change in written(job, rank).changes
        shown = run([*DYNPROF, "log", "prof_config"], cwd=tmp_path).stdout
        (line,) = [line for line in shown.splitlines() if "the pace changed" in line]
        assert line.endswith(" too")
        screen = run([*DYNPROF, "status", "prof_config"], cwd=tmp_path).stdout
        assert re.search(
            r"ranks 0 to 1: pace of the last .* a step until ", " ".join(screen.split())
        )
        history = run([*DYNPROF, "history", "prof_config"], cwd=tmp_path).stdout
        (line,) = [line for line in history.splitlines() if " times slower" in line]
        assert "ranks 0 to 1: " in line
        jobs[0].when("the median of the hour", lambda s: bool(s.hour_ms))
        options = ("--active", "3", "--backend", "python", "--ranks", "0")
        run([*DYNPROF, "arm", "prof_config", *options], cwd=tmp_path)
        cost = jobs[0].capture()[0].cost
        assert cost.step_hour_ms
        assert cost.step_during_ms
        assert cost.step_during_ms > 70


def test_history_continues_after_a_kill(tmp_path: Path) -> None:
    """``kill -9`` leaves a whole file; the restart is a mark in it, and no change."""
    with RunningJob(tmp_path, LOOP) as job:
        killed = written(job)
    with RunningJob(tmp_path, LOOP.replace("0.01", "0.05")) as job:
        record = written(job)
        ((_, step),) = record.restarts
        assert not record.changes
        readings = record.readings()
        assert readings[: len(killed.readings())] == killed.readings()
        first = readings[len(killed.readings())]
        assert (first.step, first.kind) == (step, BREAK)
        assert logged(job, f"continues that of process {killed.pid} on ")
        printed = run([*DYNPROF, "history", "prof_config", "--json"], cwd=tmp_path).stdout
    (rank,) = json.loads(printed)["ranks"]
    assert rank["pid"] == job.process.pid
    assert rank["readings"][0] == [
        killed.readings()[0].at_ms / 1e3,
        killed.readings()[0].step,
        "break",
    ]


def test_forked_child_writes_no_history(tmp_path: Path) -> None:
    """It has no thread of dynprof's; the file has the steps of the parent alone."""
    with RunningJob(tmp_path, FORKING) as job:
        wait_for("the end of the child", lambda: (tmp_path / "forked").exists() or None)
        job.when("more steps", lambda s: s.step > 200)
        assert written(job).pid == job.process.pid
        names = {path.name for path in (job.root / "status").iterdir()}
    assert names == {"rank_0.json", "rank_0.history"}


def test_job_with_a_damaged_history_trains_on(tmp_path: Path) -> None:
    """The log says it once; commands name the file, and a new history begins."""
    place = tmp_path / "prof_config" / "status" / "rank_0.history"
    place.parent.mkdir(parents=True)
    place.write_text('{"rank": 0, "seconds"')
    shown = run([*DYNPROF, "history", "prof_config"], cwd=tmp_path)
    assert shown.returncode == 3
    assert "rank_0.history is not a step history: it is not JSON with its fields" in shown.stderr
    with RunningJob(tmp_path, LOOP) as job:
        assert not written(job).restarts
        assert job.when("steps", lambda s: s.step > 100).last_error is None
        assert logged(job, "is not a step history")

"""Reading many jobs: which there are, how they are, and what they have recorded."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.fleet import jobs
from dynprof.fleet.jobs import HEALTHS, SEARCH_S, Fleet, jobs_below, short_names
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.memory_growth import Growth, MemoryStatus
from dynprof.journal.status import RUNNING, SlowStepStatus, Status, WatchStatus
from dynprof.runtime.layout import host_name, pid_namespace
from tests.left_captures import FOLDER, left
from tests.status_files import write_status

NOW_S = 2_000_000_000.0


def a_rank(rank: int = 0, **facts: object) -> Status:
    """Return the status of a rank that wrote just now."""
    known = {"state": "idle", "host": "node9", "heartbeat": NOW_S, "step": 100, "longest_s": 1.0}
    return Status(**{**known, "rank": rank, **facts})  # type: ignore[arg-type]


def test_jobs_are_found_below_a_folder_but_not_inside_each_other(tmp_path: Path) -> None:
    """A folder with a config or a status is a job; hidden folders and links are not searched."""
    for name in ("a/prof", "b/c/d/prof", ".hidden/prof", "e/f/g/h/i/prof"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "profiler_config.json").write_text("{}")
    (tmp_path / "a/prof/inner").mkdir()
    (tmp_path / "a/prof/inner/profiler_config.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "b")
    write_status(tmp_path / "started", a_rank())
    found = {str(path.relative_to(tmp_path)) for path in jobs_below(tmp_path)}
    assert found == {"a/prof", "b/c/d/prof", "started"}


def test_names_of_jobs_are_short_and_differ(tmp_path: Path) -> None:
    """Two parts, or as many as tell all apart."""
    assert short_names([tmp_path / "x" / "prof"]) == ["x/prof"]
    both = [tmp_path / "u" / "x" / "prof", tmp_path / "v" / "x" / "prof"]
    assert short_names(both) == ["u/x/prof", "v/x/prof"]
    assert short_names([tmp_path, tmp_path]) != [""]


def test_health_step_and_pace_of_a_job_are_those_of_its_ranks(tmp_path: Path) -> None:
    """A dead rank makes a job dead, its step and pace are of the live ranks."""
    for rank, step_ms in enumerate((20.0, 30.0, 80.0)):
        write_status(tmp_path, a_rank(rank, step=100 + rank, step_ms=step_ms))
    write_status(tmp_path, a_rank(3, heartbeat=NOW_S - 600, step=7, step_ms=500.0))
    (job,) = Fleet([tmp_path], lambda: NOW_S).read()
    assert [rank.health for rank in job.ranks] == ["alive"] * 3 + ["dead"]
    assert (job.health, job.step) == ("dead", 100)
    assert job.pace is not None
    assert (job.pace.least, job.pace.median, job.pace.most) == (20.0, 30.0, 80.0)
    assert job.pace.slowest.status.rank == 2


def test_a_reading_sees_every_change_and_loads_nothing_else(tmp_path: Path) -> None:
    """A rank that writes again is read again; a file that cannot be read is no rank."""
    for rank in range(3):
        write_status(tmp_path, a_rank(rank))
    fleet = Fleet([tmp_path], lambda: NOW_S)
    before = fleet.read()[0].ranks
    write_status(tmp_path, a_rank(1, step=101))
    after = fleet.read()[0].ranks
    assert [rank.status.step for rank in after] == [100, 101, 100]
    assert after[0].status is before[0].status
    (tmp_path / "status" / "rank_2.json").write_text("{")
    (tmp_path / "status" / "rank_0.json").unlink()
    assert [rank.status.rank for rank in fleet.read()[0].ranks] == [1]


def test_a_new_job_is_found_after_a_while(tmp_path: Path) -> None:
    """The folders are searched again after half a minute."""
    now_s = [NOW_S]
    fleet = Fleet([tmp_path], lambda: now_s[0])
    assert fleet.read() == ()
    write_status(tmp_path / "late", a_rank())
    assert fleet.read() == ()
    now_s[0] += SEARCH_S
    assert [job.directory for job in fleet.read()] == [tmp_path / "late"]


def test_outcome_of_a_capture_is_that_of_its_files(tmp_path: Path) -> None:
    """It is saved, incomplete or failed; and saving as long as a live rank says so."""
    folder = left(tmp_path).rename(tmp_path / FOLDER)
    path = folder / "info" / "rank_0.info.json"
    manifest = load_manifest(path)
    saving = Answer(1, manifest.request.sha256, 0.0, "saving")
    saving_at = manifest.request.model_copy(update={"edited_at": "1970-01-01T00:00:00.000+00:00"})
    write_status(tmp_path, a_rank(edits=(saving,)))
    fleet = Fleet([tmp_path], lambda: NOW_S)
    outcomes = list[str]()
    for changed in (
        {},
        {"complete": False},
        {"complete": False, "trace": None},
        {"complete": False, "trace": None, "request": saving_at},
    ):
        manifest.model_copy(update=changed).save(path)
        ((capture,),) = (job.captures for job in fleet.read())
        outcomes.append(capture.outcome)
    assert outcomes == ["saved", "incomplete", "failed", "saving"]
    write_status(tmp_path, a_rank(edits=(saving,), heartbeat=NOW_S - 600))  # its process was killed
    assert fleet.read()[0].captures[0].outcome == "failed"
    folder.rename(tmp_path / "set_aside")
    assert fleet.read()[0].captures == ()


def test_page_and_alerts_know_every_health() -> None:
    """The page's scripts have the same list; alerts on lost ranks count all that live."""
    folder = Path(jobs.__file__).parent
    (listed,) = re.findall(r"HEALTHS = (\[.*\]);", (folder / "page" / "common.js").read_text())
    assert tuple(json.loads(listed)) == HEALTHS
    assert set(RUNNING) <= set(HEALTHS)
    rules = (folder / "alert_rules.yaml").read_text()
    assert {"|".join(RUNNING)} == set(re.findall(r'health=~"(alive[^"]*)"', rules))


def test_ranks_that_failed_or_cannot_write_are_troubles(tmp_path: Path) -> None:
    """An exception has ended one script; another rank's disk takes no write."""
    write_status(tmp_path, a_rank(0))
    write_status(tmp_path, a_rank(1, state="stopped", failure="ValueError at train.py:3"))
    (job,) = Fleet([tmp_path], lambda: NOW_S).read()
    told = ["rank 1 of 2 failed at 2033-05-18T03:33:20.000+00:00: ValueError at train.py:3"]
    assert (job.health, job.troubles, job.severity) == ("failed", told, 2)
    assert [rank.status.rank for rank in job.odd] == [1]


def test_the_rank_that_died_first_is_the_cause_of_all_deaths(tmp_path: Path) -> None:
    """The others fail in a collective soon after."""
    died = "rank 1 (process 9) died of SIGKILL, in about step 100"
    failed = {"state": "stopped", "failure": "RuntimeError at train.py:3"}
    write_status(tmp_path, a_rank(0, **failed, death=died, death_at=NOW_S - 9))
    write_status(tmp_path, a_rank(1, heartbeat=NOW_S - 600))
    (job,) = Fleet([tmp_path], lambda: NOW_S).read()
    assert [text.rpartition("00:00: ")[2] for text in job.troubles] == [died, died]


def test_a_silent_rank_is_the_cause_of_a_hang(tmp_path: Path) -> None:
    """It does not write; the others wait for it in a collective."""
    waits = "all_reduce (distributed_c10d.py:3026), called at a.py:9 in main"
    here = {"host": host_name(), "pid": os.getpid(), "pid_namespace": pid_namespace()}
    write_status(tmp_path, a_rank(0, since_last_step_s=100.0, stuck_at=waits))
    write_status(tmp_path, a_rank(1, **here, heartbeat=NOW_S - 100))
    (job,) = Fleet([tmp_path], lambda: NOW_S).read()
    (said,) = job.troubles
    assert ": rank 1 does not answer since " in said


def test_ranks_that_a_new_run_does_not_have_are_left_out(tmp_path: Path) -> None:
    """Four ranks were killed; the job began again with two."""
    for number in range(4):
        write_status(tmp_path, a_rank(number, world_size=4, heartbeat=NOW_S - 600))
    fleet = Fleet([tmp_path], lambda: NOW_S)
    assert fleet.read()[0].counts == {"dead": 4}
    for number in range(2):
        write_status(tmp_path, a_rank(number, world_size=2))
    assert fleet.read()[0].counts == {"alive": 2}
    for number in range(2):
        write_status(tmp_path, a_rank(number, world_size=2, state="stopped"))
    assert fleet.read()[0].counts == {"stopped": 2}


def test_a_rank_of_the_run_that_wrote_last_stays_dead(tmp_path: Path) -> None:
    """One of two ranks ended normally, the other was killed before; an older run had four."""
    for number in range(4):
        write_status(tmp_path, a_rank(number, world_size=4, heartbeat=NOW_S - 600))
    write_status(tmp_path, a_rank(0, world_size=2, state="stopped"))
    write_status(tmp_path, a_rank(1, world_size=2, heartbeat=NOW_S - 60))
    assert Fleet([tmp_path], lambda: NOW_S).read()[0].counts == {"stopped": 1, "dead": 1}


def test_troubles_name_their_cause(tmp_path: Path) -> None:
    """The usual place, the last slow step, the memory and the failed request; texts are bounded."""
    waits = "all_reduce (distributed_c10d.py:3026), called at a.py:9 in main"
    for number, place in enumerate((waits, "g\x1b (b.py:2)", waits)):
        write_status(tmp_path, a_rank(number, since_last_step_s=100.0, stuck_at=place))
    slow = SlowStepStatus(412, 3000.0, 20.0, 0.0, "x" * 999, ended_at=NOW_S - 60)
    growth = Growth("resident", 1e9, 600, 500.0, 900.0, 120.0)
    saved, failed = Answer(2, "a", 1e9, "saved"), Answer(3, "b", 2e9, "failed", "the disk is full")
    live = a_rank(
        3,
        watch=WatchStatus(slow_steps=1, last=slow),
        memory=MemoryStatus(900, growths=(growth,), low="2% of the device left"),
        edits=(saved, failed),
    )
    write_status(tmp_path, live)
    (job,) = Fleet([tmp_path], lambda: NOW_S).read()
    stuck, slow_step, *others = job.troubles
    assert (
        stuck
        == "ranks 0 to 2 of 4 stuck since 2033-05-18T03:31:40.000+00:00: rank 1 in g\\x1b (b.py:2)"
    )
    assert slow_step.startswith(
        "single slow steps; step 412, at 2033-05-18T03:32:20.000+00:00, took 3,000 ms, 20 ms is "
        "usual: xx"
    )
    assert len(slow_step) < 300
    assert others == [
        "resident memory grows by 120 MB an hour since 2001-09-09T01:46:40.000+00:00: "
        "500 MB then, 900 MB now",
        "memory is low: 2% of the device left",
        "request 3 failed: the disk is full",
    ]
    again = Answer(4, "c", 3e9, "saved")
    write_status(tmp_path, a_rank(3, edits=(saved, failed, again)))
    assert len(Fleet([tmp_path], lambda: NOW_S).read()[0].troubles) == 1


@pytest.mark.parametrize(
    ("age_s", "failure", "severity"), [(600, "", 2), (600, "E", 2), (90_000, "", 0)]
)
def test_a_job_that_is_lost_as_a_whole_is_severe_for_a_day(
    tmp_path: Path, age_s: float, failure: str, severity: int
) -> None:
    """Dead or failed alike; later it is history."""
    state = "stopped" if failure else "idle"
    write_status(tmp_path, a_rank(heartbeat=NOW_S - age_s, state=state, failure=failure))
    (job,) = Fleet([tmp_path], lambda: NOW_S).read()
    assert (job.live, job.severity) == ([], severity)


def test_a_job_whose_status_files_cannot_be_read_says_so(tmp_path: Path) -> None:
    """It is a trouble, and goes away with the first file that can be read."""
    write_status(tmp_path, a_rank(1))
    path = tmp_path / "status" / "rank_0.json"
    (tmp_path / "status" / "rank_1.json").rename(path)
    whole = path.read_bytes()
    path.write_bytes(b"[]")
    (found,) = Fleet([tmp_path], lambda: NOW_S).read()
    assert (found.troubles, found.severity) == (["status file rank_0.json cannot be read"], 1)
    path.write_bytes(whole)
    (found,) = Fleet([tmp_path], lambda: NOW_S).read()
    assert (found.troubles, found.severity) == ([], 0)

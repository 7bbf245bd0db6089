"""``dynprof status``: the output for given statuses of ranks."""

from __future__ import annotations

import io
import os
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from dynprof.cli.config_directory import in_json, lost_ranks
from dynprof.cli.status import screen
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import LEADS, JobStatus, Status
from dynprof.runtime.layout import host_name, pid_namespace


def rank(number: int, **fields: Any) -> Status:
    """Return the status of a rank on another machine, written just now."""
    here = Status("idle", rank=number, host="node9", step=409, heartbeat=time.time())
    return replace(here, **fields)


def lines(*found: Status) -> list[str]:
    """Return the lines for ranks."""
    shown = Console(file=io.StringIO(), width=120)
    with shown.capture() as captured:
        shown.print(screen(list(found), shown.width))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_steps_are_those_of_a_common_second() -> None:
    """A rank that wrote two seconds later is shown at its step of that second."""
    now_s = float(int(time.time()))
    second = rank(
        1, step=600, heartbeat=now_s - 2.5, recent_steps=((now_s - 5, 350), (now_s - 3, 550))
    )
    first = rank(0, step=409, heartbeat=now_s - 4.5, recent_steps=((now_s - 5, 350),))
    head, *rows = lines(first, second)
    assert "step 5 s ago" in head or "step 6 s ago" in head
    assert [row.split()[4] for row in rows] == ["350", "350"]


def test_the_step_of_a_silent_rank_has_its_own_time() -> None:
    """It is not of the moment in the heading; the line below says since when it is silent."""
    now_s = time.time()
    here = {"host": host_name(), "pid": 1, "pid_namespace": pid_namespace()}
    _, talking, silent, *notes = lines(
        rank(0, step=1279), rank(1, step=1155, heartbeat=now_s - 20, **here)
    )
    clock = time.strftime("%H:%M:%S", time.localtime(now_s - 20))
    assert ("1,279 at" in talking, f"1,155 at {clock}" in silent) == (False, True)
    told = " ".join(map(str.strip, notes))
    assert told.startswith(f"rank 1: does not answer since {clock}: ")
    assert told.endswith("; dynprof dump shows where it is")


@pytest.mark.parametrize(("exits", "expected"), [(True, "exiting"), (False, "unwatched")])
def test_table_and_json_have_the_same_health(exits: bool, expected: str) -> None:
    """The session has stopped, and its process still runs."""
    here = {"host": host_name(), "pid": os.getpid(), "pid_namespace": pid_namespace()}
    ended = rank(0, state="stopped", process_exits=exits, **here)
    _, row, *_ = lines(ended)
    assert (row.split()[2], in_json(ended, None)["health"]) == (expected, expected)


def test_progress_counts_warm_up_and_recording_separately() -> None:
    """Ten requested steps are not shown as fifteen."""
    warming = rank(0, state="warmup", progress=(3, 15), warmup=5)
    recording = rank(1, state="recording", progress=(6, 15), warmup=5)
    _, *rows = lines(warming, recording)
    assert ["warmup 3/5" in rows[0], "recording 1/10" in rows[1]] == [True, True]


def test_healthy_ranks_among_many_are_counted() -> None:
    """Healthy ranks share a line with their range of steps; the others have a line each."""
    shown = lines(*(rank(n, step=409 + n % 2) for n in range(98)), rank(98, state="waiting"))
    assert len(shown) == 3
    assert shown[1].startswith("98 ")
    assert shown[2] == "98 more ranks, alive and idle, at steps 409 to 410"


def test_ranks_that_hang_at_one_place_share_a_line() -> None:
    """A rank at another place, for which they wait, is then easy to find."""
    stuck = {"since_last_step_s": 60.0, "longest_s": 1.0}
    wait, load = "all_reduce (c10d.py:3026)", "/data/job.py:7 in load"
    places = {0: wait, 1: wait, 2: load, 3: wait}
    *_, waiting, loading = lines(*(rank(n, stuck_at=at, **stuck) for n, at in places.items()))
    assert waiting == f"ranks 0 to 1, 3: still in step 409; the training thread is in {wait}"
    assert loading == f"rank 2: still in step 409; the training thread is in {load}"


def test_a_waiting_request_names_the_reason() -> None:
    """A far start step looks like a forgotten request."""
    text = "accepted, saved 03:15:00.002; opens at step 999999, 3 steps with torch (CPU)"
    waiting = rank(0, state="waiting", edits=(Answer(1, "a", 1.0, "waiting", text),))
    assert lines(waiting)[-1] == f"rank 0: request 1: {text}"


def test_a_refused_request_is_named_with_each_of_its_problems() -> None:
    """Earlier problems may belong to requests with other numbers."""
    why = ("line 3: no", "line 4: neither")
    refused = rank(0, problems=why, edits=(Answer(7, "a", 1.0, "refused", why[0]),))
    assert lines(refused)[-2:] == [f"rank 0: request 7 refused: {problem}" for problem in why]
    later = (*refused.edits, Answer(8, "b", 2.0, "not requested", ""))
    assert "line 3" not in "".join(lines(replace(refused, edits=later)))


def test_a_problem_of_the_whole_job_is_not_repeated_for_each_rank() -> None:
    """The leader has it from the ranks."""
    why = "line 3: no"
    edits = (Answer(7, "a", 1.0, "refused", why),)
    told = (f"ranks 0 to 1: {why}",)
    job = JobStatus(request=7, ranks=2, heard_at=time.time(), problems=told)
    leading = rank(0, problems=(why,), edits=edits, agreement=LEADS, job=job)
    assert "\n".join(lines(leading, rank(1, problems=(why,), edits=edits))).count(why) == 1


def test_a_rank_without_a_status_is_named() -> None:
    """It may not have called init(), or have another directory if the leader hears it."""
    found = [rank(number, world_size=6) for number in (0, 1, 3)]
    text = "have not called init(), or not in this directory: there is no status"
    assert lines(*found)[-1] == f"ranks 2, 4 to 5 {text}"
    job = JobStatus(ranks=6, states={"idle": 6}, heard_at=time.time())
    assert text not in "".join(lines(replace(found[0], agreement=LEADS, job=job), *found[1:]))
    job = JobStatus(ranks=6, states={"idle": 3, "missing": 3}, heard_at=time.time())
    assert text in "".join(lines(replace(found[0], agreement=LEADS, job=job), *found[1:]))


def test_ranks_that_have_ended_are_named_with_their_end() -> None:
    """Ranks of an earlier, larger job are not; neither is a rank that a new process has."""
    failure, at = "ValueError at job.py:5 in load", time.time() - 40
    clock = time.strftime("%H:%M:%S", time.localtime(at))
    died = "rank 1 (process 5) died of SIGKILL, in about step 10"
    found = [
        rank(0, world_size=4, death=died),
        rank(1, world_size=4, heartbeat=at),
        rank(2, world_size=4, heartbeat=at, state="stopped", failure=failure),
        rank(3, world_size=4, heartbeat=at, state="stopped"),
        rank(7, world_size=8, heartbeat=at),
    ]
    assert lost_ranks(found) == [
        f"rank 1 is dead (last heard {clock}); rank 0 saw that {died}",
        f"rank 2 failed at {clock}: {failure}",
        f"rank 3 has ended at {clock}",
    ]
    assert lost_ranks(found[1:]) == []


def test_a_step_that_has_begun_to_hang_is_named() -> None:
    """It is stuck after half a minute at the earliest; the heading has the age of its number."""
    found = rank(0, step=300, since_last_step_s=12.0, step_ms=20.0)
    assert lines(found)[-1] == "rank 0: no step has ended for 12 s"
    assert "no step" not in "".join(lines(replace(found, since_last_step_s=2.0)))

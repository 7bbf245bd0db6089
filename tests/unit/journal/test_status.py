"""The status file, read back: the state of a process."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest

from dynprof.errors import CaptureError
from dynprof.journal import status as status_module
from dynprof.journal.status import Status, common_moment, load_status, with_disk
from dynprof.runtime.layout import host_name, pid_namespace
from dynprof.runtime.safe_open import open_folder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"state": 1, "profilers": [1]}',
        '{"state": "idle", "heartbeat": "x"}',
        "[" * 100_000,
        "x" * (2 << 20),
    ],
    ids=["empty", "list", "half", "types", "text", "deep", "large"],
)
def test_a_file_that_is_not_a_status_is_an_error(tmp_path: Path, text: str) -> None:
    """Any other content raises dynprof's own error."""
    (tmp_path / "rank_0.json").write_text(text)
    with pytest.raises(CaptureError, match="not a status file"):
        load_status(tmp_path / "rank_0.json")


def test_error_does_not_quote_a_wrong_value(tmp_path: Path) -> None:
    """Another user may have put any file there."""
    edit = {"number": 1, "sha256": "", "edited_at": 0, "outcome": "S3CRET"}
    (tmp_path / "rank_0.json").write_text(json.dumps({"state": "idle", "edits": [edit]}))
    with pytest.raises(CaptureError) as error:
        load_status(tmp_path / "rank_0.json")
    assert "S3CRET" not in str(error.value)


def test_a_status_is_read_from_a_file_only(tmp_path: Path) -> None:
    """A link to an endless device or a pipe without a writer does not block."""
    (tmp_path / "link.json").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("link.json", "pipe.json"):
        with pytest.raises(CaptureError, match="not a status file"):
            load_status(tmp_path / name)
        with open_folder(tmp_path) as folder, pytest.raises(CaptureError, match="not a status"):
            load_status(tmp_path / name, folder)


def test_a_status_of_a_newer_version_is_read(tmp_path: Path) -> None:
    """Unknown fields of a newer version are ignored."""
    (tmp_path / "rank_0.json").write_text(json.dumps({"state": "idle", "mood": "good"}))
    assert load_status(tmp_path / "rank_0.json").state == "idle"


def test_liveness() -> None:
    """A process is live while its heartbeat is recent and it has not stopped."""
    assert Status("idle", heartbeat=100).is_live(110)
    assert not Status("idle", heartbeat=100).is_live(116)
    assert not Status("stopped", heartbeat=100).is_live(101)


def test_a_process_that_exists_is_not_dead() -> None:
    """The health of a process here is that of its pid and start, even if its status is old."""
    now_s = time.time()
    mine = Status("idle", pid=1, host=host_name(), pid_namespace=pid_namespace(), heartbeat=now_s)
    assert mine.health(now_s) == "alive"
    assert replace(mine, heartbeat=now_s - 40).health(now_s) == "stuck"
    assert replace(mine, heartbeat=1.0).health(now_s) == "dead"  # the process is younger
    assert replace(mine, pid=2**22 + 1).health(now_s) == "dead"
    assert replace(mine, heartbeat=now_s - 40, host="node9").health(now_s) == "dead"


def test_the_first_step_may_take_long() -> None:
    """Until it ends, a process is starting; after half an hour it is stuck."""
    here = Status("idle", pid=1, host="node9", heartbeat=100.0, since_last_step_s=125.0)
    assert replace(here, longest_s=None).health(100) == "starting"
    assert replace(here, longest_s=None, since_last_step_s=1801.0).health(100) == "stuck"
    assert replace(here, longest_s=None).health(116) == "dead"  # another machine, no heartbeat
    assert here.health(100) == "stuck"


def test_a_process_that_ends_is_not_stuck() -> None:
    """An ending process may wait for a capture without steps, but must write its status."""
    here = Status("sending", host=host_name(), pid=os.getpid(), pid_namespace=pid_namespace())
    ends = replace(here, heartbeat=time.time(), since_last_step_s=500.0, ending="the process ended")
    assert ends.health(ends.heartbeat) == "ending"
    assert replace(ends, ending="").health(ends.heartbeat) == "stuck"
    assert ends.health(ends.heartbeat + 40) == "stuck"
    assert replace(ends, state="stopped").health(ends.heartbeat) == "stopped"


def test_a_step_may_take_as_long_as_an_earlier_one() -> None:
    """The limit is 1.5 times the longest step, up to half an hour: a recompilation is not stuck."""
    here = Status("idle", host="node9", heartbeat=100.0, longest_s=125.0)
    assert replace(here, since_last_step_s=180.0).health(100) == "alive"
    assert replace(here, since_last_step_s=190.0).health(100) == "stuck"
    assert replace(here, longest_s=1e6, since_last_step_s=1801.0).health(100) == "stuck"


def test_a_step_in_which_the_training_thread_runs_may_take_half_an_hour() -> None:
    """An evaluation is not stuck; a limit above half an hour stays."""
    here = Status("idle", host="node9", heartbeat=100.0, since_last_step_s=900.0)
    assert here.health(100) == "stuck"
    runs = replace(here, training_thread_runs=True)
    assert runs.health(100) == "alive"
    assert replace(runs, since_last_step_s=1801.0).health(100) == "stuck"
    assert replace(runs, since_last_step_s=1801.0, step_ms=1e5).health(100) == "alive"


def test_a_step_of_unusual_length_is_known_before_it_is_stuck() -> None:
    """Five seconds and ten usual steps; not of a silent process, or in the first step."""
    here = Status("idle", host="node9", heartbeat=100.0, since_last_step_s=4.0, step_ms=20.0)
    assert [here.standing_s(now_s) for now_s in (100.5, 103, 116)] == [0, 7, 0]
    others = (
        {"step_ms": 1e3},
        {"longest_s": None},
        {"ending": "it ends"},
        {"since_last_step_s": 1.0},
    )
    assert [replace(here, **other).standing_s(103) for other in others] == [0] * 4


def test_the_step_at_a_moment_is_interpolated() -> None:
    """Outside the known samples the step is the first or the last one."""
    here = Status("idle", step=400, heartbeat=104.5, recent_steps=((102.0, 100), (104.0, 300)))
    found = [here.step_at(moment) for moment in (90, 102, 103, 103.999, 104, 104.25, 104.5, 110)]
    assert found == [100, 100, 200, 299, 300, 350, 400, 400]
    assert replace(here, recent_steps=()).step_at(103) == 400  # of an earlier version
    set_back = replace(here, recent_steps=((103.0, 100), (102.0, 50), (104.0, 300)))
    assert set_back.step_at(103) == 175  # the clock was


def test_ranks_are_compared_at_a_whole_second_that_all_have_written() -> None:
    """A rank that is dead, has ended or stopped writing does not delay the others."""
    ranks = [Status("idle", host="node9", heartbeat=heartbeat) for heartbeat in (104.7, 108.2)]
    gone = Status("idle", host="node9", heartbeat=80.0)
    assert common_moment([*ranks, gone, Status("stopped", heartbeat=101.0)], 109) == 104
    assert common_moment([gone], 109) is None


def test_a_silent_process_has_as_long_as_a_step() -> None:
    """A checkpoint may hold the GIL; the limit is that of its steps, if it is not stopped."""
    now_s = time.time()
    mine = Status("idle", pid=1, host=host_name(), pid_namespace=pid_namespace(), longest_s=40.0)
    silent = replace(mine, heartbeat=now_s - 50, since_last_step_s=5.0)
    assert silent.health(now_s) == "alive"
    assert not silent.writes(now_s)
    assert silent.health(now_s + 10) == "stuck"
    assert replace(silent, longest_s=None).health(now_s + 10) == "starting"
    assert (
        replace(silent, training_thread_runs=True).health(now_s + 10) == "stuck"
    )  # that was before


def test_a_disk_is_tried_for_a_silent_process_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for one that writes, has ended or runs elsewhere."""
    monkeypatch.setattr(status_module, "why_write_fails", lambda _: "the disk quota is used up")
    now_s = time.time()
    mine = {"host": host_name(), "pid": os.getpid(), "pid_namespace": pid_namespace()}
    silent = Status("idle", heartbeat=now_s, **mine)  # type: ignore[arg-type]
    now_s += 100
    assert with_disk(silent, tmp_path, now_s, may_write=True).health(now_s) == "unknown"
    assert with_disk(silent, tmp_path, now_s).unwritable == ""  # a dashboard writes nothing
    others = ({"heartbeat": now_s}, {"state": "stopped"}, {"host": "node9"}, {"pid": 2**22 + 1})
    for other in others:
        assert with_disk(replace(silent, **other), tmp_path, now_s, may_write=True).unwritable == ""


def test_a_disk_that_hangs_is_named_and_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes waits for it; if the main thread does, too, the job hangs."""
    monkeypatch.setattr(status_module, "state_of_thread", lambda *_: "D")
    monkeypatch.setattr(status_module, "why_write_fails", lambda _: pytest.fail("it would hang"))
    now_s = time.time()
    mine = Status("idle", host=host_name(), pid=os.getpid(), pid_namespace=pid_namespace())
    silent = replace(mine, heartbeat=now_s)
    assert (
        with_disk(silent, tmp_path, now_s + 100, may_write=True).unwritable
        == "the disk does not answer"
    )
    monkeypatch.setattr(Status, "process_state", lambda _: psutil.STATUS_DISK_SLEEP)
    assert with_disk(silent, tmp_path, now_s + 100).health(now_s + 100) == "stuck"


def test_health_is_unknown_while_the_disk_takes_no_status(tmp_path: Path) -> None:
    """A full disk makes all ranks silent, also those of other machines."""
    now_s = time.time()
    mine = Status("idle", pid=1, host=host_name(), pid_namespace=pid_namespace())
    silent = replace(mine, heartbeat=now_s - 500, unwritable="the disk is full")
    assert silent.health(now_s) == "unknown"
    assert replace(silent, heartbeat=now_s).health(now_s) == "alive"
    assert replace(silent, pid=2**22 + 1).health(now_s) == "dead"
    assert replace(silent, host="node9").health(now_s) == "unknown"
    assert replace(silent, state="stopped").health(now_s) == "stopped"
    (tmp_path / "rank_0.json").write_text('{"state": "idle", "unwritable": "so it says"}')
    assert load_status(tmp_path / "rank_0.json").unwritable == ""

"""The output for a command that waits for a request of ranks that have ended."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path

import pytest

from dynprof.cli.outcome import NOT_SERVED, RANK_LOST
from dynprof.cli.request_follower import Follower, _stuck_note
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import LEADS, NO_SOURCE, JobStatus, Status, WindowStatus
from dynprof.runtime.layout import CONFIG_NAME, STATUS_DIR

CUT = "the process ended"
SAVED = JobStatus(
    ranks=4,
    states={"idle": 4},
    request=1,
    asked=4,
    saved=4,
    remarks=(f"rank 0 was cut short: {CUT}", f"rank 3 was cut short: {CUT}"),
    record="step_1-3/info/window.json",
)


def write(directory: Path, *found: Status) -> None:
    """Write the status of ranks."""
    (directory / STATUS_DIR).mkdir(exist_ok=True)
    for one in found:
        path = directory / STATUS_DIR / f"rank_{one.rank}.json"
        path.write_text(json.dumps(dataclasses.asdict(one)))


def told(directory: Path, capsys: pytest.CaptureFixture[str], *after: Status) -> tuple[int, str]:
    """Return exit code and output of a command that waits for the request of ranks."""
    (directory / CONFIG_NAME).touch()
    write(directory, *after)
    before = [dataclasses.replace(one, state="idle", edits=()) for one in after]
    code = Follower(directory / CONFIG_NAME, "abc", before).follow(before, None)
    return code, "\n".join(capsys.readouterr().err.splitlines())  # a bar is for a terminal


def ended(job: JobStatus | None, cut: str = CUT) -> Status:
    """Return the last status of a rank that has saved the request."""
    answer = Answer(1, "abc", time.time(), "saved", capture="step_1-3/info/rank_0.json", cut=cut)
    here = Status("stopped", host="node9", pid=7, heartbeat=time.time(), edits=(answer,))
    return dataclasses.replace(here, job=job, agreement=LEADS if job else "")


def test_a_single_rank_prints_why_it_was_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process's end or a limit cut it: the capture lacks steps."""
    assert told(tmp_path, capsys, ended(None)) == (0, f"rank 0 was cut short: {CUT}")


def test_the_expected_cost_of_a_window_is_printed_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cost is printed for the first rank that reports it, not for each."""
    (answer,) = ended(None, "").edits
    costly = dataclasses.replace(answer, expected="5 steps take about 9.0 s to save")
    ranks = [dataclasses.replace(ended(None, ""), rank=rank, edits=(costly,)) for rank in (0, 1)]
    (tmp_path / CONFIG_NAME).touch()
    write(tmp_path, *ranks)
    before = [dataclasses.replace(one, state="idle", edits=()) for one in ranks]
    assert Follower(tmp_path / CONFIG_NAME, "abc", before).follow(before, None) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "to save" in line]
    assert said == ["rank 0: 5 steps take about 9.0 s to save"]


def test_a_whole_capture_gives_no_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The later end of the process does not matter."""
    assert told(tmp_path, capsys, ended(None, "")) == (0, "")


@pytest.mark.parametrize("leads", [True, False])
def test_a_cancel_does_not_wait_for_captures_that_were_closed_before(
    tmp_path: Path, leads: bool
) -> None:
    """An older capture may be sent for hours. The window that the cancel closes is waited for."""
    older = Answer(1, "old", time.time(), "saving")
    job = JobStatus(request=1, pending=1) if leads else None
    before = Status("sending", host="node9", heartbeat=time.time(), edits=(older,), job=job)
    cancel = Answer(3, "abc", time.time(), "cancel")
    after = dataclasses.replace(before, edits=(older, cancel))
    (tmp_path / CONFIG_NAME).touch()
    write(tmp_path, after)
    assert Follower(tmp_path / CONFIG_NAME, "abc", [before]).follow([before], 5.0) == 0
    closing = Answer(2, "old", time.time(), "open")
    before = dataclasses.replace(before, edits=(older, closing))
    after = dataclasses.replace(before, edits=(older, closing, cancel))
    write(tmp_path, after)
    follower = Follower(tmp_path / CONFIG_NAME, "abc", [before])
    assert (follower.follow([before], 0.1), follower.stop_reason) == (RANK_LOST, "timeout")


def test_a_leader_that_has_ended_reports_all_known_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The output has the saved ranks, the record's place, and each rank cut short, once."""
    code, said = told(tmp_path, capsys, ended(SAVED))
    record = tmp_path / SAVED.record
    assert (code, said.splitlines()) == (
        0,
        [f"4 of 4 ranks saved it: {record}", *SAVED.remarks],
    )


def test_a_leader_that_ended_earlier_does_not_report_a_repeated_save(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ended process's result belongs to an older save of the same bytes."""
    (tmp_path / CONFIG_NAME).touch()
    rank = dataclasses.replace(ended(None, ""), rank=1, pid=8)
    write(tmp_path, ended(SAVED), rank)
    before = [dataclasses.replace(rank, state="idle", edits=())]
    assert Follower(tmp_path / CONFIG_NAME, "abc", before).follow(before, None) == 0
    assert capsys.readouterr().err.strip() == ""


def test_a_cut_is_printed_once_despite_a_later_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest request of the leader is another one."""
    window = {one.name: getattr(SAVED, one.name) for one in dataclasses.fields(WindowStatus)}
    job = JobStatus(ranks=4, request=2, asked=4, earlier=(WindowStatus(**window),))
    _, said = told(tmp_path, capsys, ended(job))
    assert said.splitlines()[1:] == [*SAVED.remarks]


def test_a_leader_that_has_ended_names_missing_ranks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of a lost rank."""
    job = dataclasses.replace(SAVED, saved=3, stragglers={2: "it does not answer"})
    code, said = told(tmp_path, capsys, ended(job))
    assert (code, "rank 2: it does not answer" in said.splitlines()) == (RANK_LOST, True)


@pytest.mark.parametrize("pending", [2, None])
def test_a_leader_that_ended_early_reports_only_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pending: int | None
) -> None:
    """The command does not wait for results that the leader will never hear."""
    job = dataclasses.replace(SAVED, saved=2, pending=pending)
    assert told(tmp_path, capsys, ended(job)) == (0, f"rank 0 was cut short: {CUT}")


def test_a_record_outside_the_directory_is_named_by_its_whole_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Manifests next to it are named the same way, not relative to the config's directory."""
    (tmp_path / "prof_config").mkdir()
    job = dataclasses.replace(SAVED, record="../captures/step_1-3/info/window.json")
    _, said = told(tmp_path / "prof_config", capsys, ended(job))
    record = tmp_path.resolve() / "captures/step_1-3/info/window.json"
    assert said.splitlines()[0] == f"4 of 4 ranks saved it: {record}"


def alive(rank: int, *edits: Answer, job: JobStatus | None = None) -> Status:
    """Return the status of a live rank on another machine."""
    now_s = time.time()
    here = Status("idle", rank=rank, host="node9", pid=7 + rank, heartbeat=now_s, edits=edits)
    return dataclasses.replace(here, job=job, agreement=LEADS if job else "follows rank 0")


def never(_: float) -> None:
    """Fail: no pause is expected."""
    raise AssertionError("it is over, and waited for")


SUPERSEDED = "superseded by request 2"


def superseded_by_start() -> tuple[Answer, Answer]:
    """Return the results of a save and of the ``dp.start()`` that superseded it; equal bytes."""
    saved_s = time.time()
    by_start = Answer(2, "abc", saved_s + 5.0, "saved", capture="step_7-9/info/rank.json")
    return Answer(1, "abc", saved_s, "superseded", SUPERSEDED), by_start


@pytest.mark.parametrize("rank", [0, 1])
def test_a_window_of_the_script_is_not_a_result_of_the_save(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
) -> None:
    """The script's window has the same bytes. The save is over, and its rank is named once."""
    monkeypatch.setattr(time, "sleep", never)
    job = dataclasses.replace(SAVED, asked=2, saved=1, stragglers={rank: SUPERSEDED}, remarks=())
    saved = Answer(1, "abc", time.time(), "saved", capture=f"step_1-3/info/rank_{1 - rank}.json")
    edits = {rank: superseded_by_start(), 1 - rank: (saved,)}
    code, said = told(tmp_path, capsys, alive(0, *edits[0], job=job), alive(1, *edits[1]))
    names = [f"rank {rank}: {SUPERSEDED}", f"1 of 2 ranks saved it: {tmp_path / SAVED.record}"]
    assert (code, said.splitlines()) == (RANK_LOST, names)


def test_other_ranks_are_waited_for_if_the_leader_has_lost_the_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader may still hear of ranks in directories that are not visible here."""
    looked: list[float] = []

    def hear(pause_s: float) -> None:
        looked.append(pause_s)
        assert len(looked) == 1
        job = dataclasses.replace(SAVED, asked=2, saved=1, stragglers={0: SUPERSEDED})
        write(tmp_path, alive(0, *superseded_by_start(), job=job))

    monkeypatch.setattr(time, "sleep", hear)
    job = dataclasses.replace(SAVED, asked=2, saved=0, pending=1, remarks=())
    code, said = told(tmp_path, capsys, alive(0, *superseded_by_start(), job=job))
    assert (code, len(looked)) == (RANK_LOST, 1)
    assert f"1 of 2 ranks saved it: {tmp_path / SAVED.record}" in said.splitlines()


def test_a_window_that_all_ranks_give_up_is_named_by_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line for all ranks with the same reason; the number of saved ranks is left out."""
    job = dataclasses.replace(SAVED, asked=2, saved=0, remarks=())
    answer, _ = superseded_by_start()
    code, said = told(tmp_path, capsys, alive(0, answer, job=job), alive(1, answer))
    assert (code, said) == (NOT_SERVED, f"ranks 0 to 1: {SUPERSEDED}")


def test_the_leaders_result_of_a_rank_that_rejoined_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After ``dp.shutdown()`` and ``dp.init()`` the rank does not know the save any more."""
    monkeypatch.setattr(time, "sleep", never)
    why = "not served, shutdown() was called"
    job = dataclasses.replace(SAVED, asked=2, saved=1, stragglers={1: why}, remarks=())
    saved = Answer(1, "abc", time.time(), "saved", capture="step_1-3/info/rank_0.json")
    code, said = told(tmp_path, capsys, alive(0, saved, job=job), alive(1))
    assert (code, said.splitlines()[1:]) == (RANK_LOST, [f"rank 1: {why}"])
    assert said.splitlines()[0].startswith("1 of 2 ranks saved it")


def test_an_ending_process_saves_but_answers_no_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command waits for a capture, but not for an answer; it suggests no cancel."""
    why = "the process ended; it waits up to 600 s for what is being saved and sent"
    on_its_way = Answer(1, "abc", time.time(), "saving", "its capture is not in s3://b yet: denied")
    ends = dataclasses.replace(alive(0), agreement="", since_last_step_s=99.0, ending=why)
    monkeypatch.setattr(time, "sleep", never)
    code, said = told(tmp_path, capsys, ends)
    assert (code, said) == (RANK_LOST, f"rank 0: has not answered; the process is ending: {why}")
    monkeypatch.undo()
    write(tmp_path, dataclasses.replace(ends, edits=(on_its_way,)))
    follower = Follower(tmp_path / CONFIG_NAME, "abc", [ends])
    assert follower.follow([ends], 0.2) == RANK_LOST
    assert (follower.stop_reason, follower.can_be_cancelled) == ("timeout", False)
    assert f"rank 0: still saving: {on_its_way.text}" in capsys.readouterr().err


def test_waiting_for_a_first_step_hints_at_a_missing_step_call() -> None:
    """Perhaps ``dp.step()`` is missing: a step of minutes is a compilation, or that."""
    status = Status("waiting", heartbeat=time.time(), since_last_step_s=51.0)
    why = f"{NO_SOURCE}: no step has ended in 30 s: dp.step() was not called"
    said = _stuck_note(status, "starting", Path("p"))
    assert said == "; it is in its first step for 51 s"
    forgotten = dataclasses.replace(status, steps_from=why)
    assert _stuck_note(forgotten, "starting", Path("p")) == f"{said}, and it has {why}"


def test_a_request_to_a_job_that_hangs_names_dump() -> None:
    """It waits for the end of a step; also before this step is stuck."""
    hangs = Status(
        "waiting", host="node9", heartbeat=time.time(), since_last_step_s=12.0, step_ms=20.0
    )
    for how in ("alive", "stuck"):
        assert _stuck_note(hangs, how, Path("p")) == (
            "; its step counter has not moved for 12 s; dynprof dump p shows where it is"
        )
    assert _stuck_note(dataclasses.replace(hangs, since_last_step_s=0.0), "alive", Path("p")) == ""

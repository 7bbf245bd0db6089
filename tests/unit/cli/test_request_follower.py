"""What whoever waits for a request is told of one whose ranks have ended."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING

import pytest

from dynprof.cli.outcome import LOST
from dynprof.cli.request_follower import Follower
from dynprof.files.layout import CONFIG_NAME, STATUS_DIR
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import LEADS, JobStatus, Status, WindowStatus

if TYPE_CHECKING:
    from pathlib import Path

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


def told(directory: Path, after: Status, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit code of who waits for the request of a rank, and what he is told."""
    (directory / CONFIG_NAME).touch()
    (directory / STATUS_DIR).mkdir()
    (directory / STATUS_DIR / "rank_0.json").write_text(json.dumps(dataclasses.asdict(after)))
    before = dataclasses.replace(after, state="idle", edits=())
    code = Follower(directory / CONFIG_NAME, "abc", [before]).follow([before], None)
    return code, "\n".join(capsys.readouterr().err.splitlines()[1:])  # without the bar


def ended(job: JobStatus | None, cut: str = CUT) -> Status:
    """Return the last status of a rank that has saved the request."""
    answer = Answer(1, "abc", time.time(), "saved", capture="step_1-3/info/rank_0.json", cut=cut)
    here = Status("stopped", host="node9", pid=7, heartbeat=time.time(), edits=(answer,))
    return dataclasses.replace(here, job=job, agreement=LEADS if job else "")


def test_a_rank_by_itself_says_why_it_was_cut_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the end of the process, or by a limit: the capture has not all the steps."""
    assert told(tmp_path, ended(None), capsys) == (0, f"rank 0 was cut short: {CUT}")


def test_nothing_is_said_of_a_whole_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """That the process has ended since is of no interest."""
    assert told(tmp_path, ended(None, ""), capsys) == (0, "")


def test_a_leader_that_has_ended_says_what_it_had_heard_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who saved it, where the record lies, and each rank that was cut short, once."""
    code, said = told(tmp_path, ended(SAVED), capsys)
    record = tmp_path / SAVED.record
    assert (code, said.splitlines()) == (
        0,
        [f"4 of 4 ranks saved it: {record}", *SAVED.remarks],
    )


def test_a_cut_is_said_once_though_a_later_request_is_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The newest that the rank leads is another's."""
    window = {one.name: getattr(SAVED, one.name) for one in dataclasses.fields(WindowStatus)}
    job = JobStatus(ranks=4, request=2, asked=4, earlier=(WindowStatus(**window),))
    _, said = told(tmp_path, ended(job), capsys)
    assert said.splitlines()[1:] == [*SAVED.remarks]


def test_a_leader_that_has_ended_names_who_was_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is that of a rank that was lost."""
    job = dataclasses.replace(SAVED, saved=3, stragglers={2: "it does not answer"})
    code, said = told(tmp_path, ended(job), capsys)
    assert (code, "rank 2: it does not answer" in said.splitlines()) == (LOST, True)


@pytest.mark.parametrize("pending", [2, None])
def test_a_leader_that_ended_too_early_speaks_for_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pending: int | None
) -> None:
    """What it has not heard of, and will not, nobody waits for."""
    job = dataclasses.replace(SAVED, saved=2, pending=pending)
    assert told(tmp_path, ended(job), capsys) == (0, f"rank 0 was cut short: {CUT}")


def test_a_record_that_lies_elsewhere_is_named_by_its_whole_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the manifests beside it are, not by a way up from the config's directory."""
    (tmp_path / "prof_config").mkdir()
    job = dataclasses.replace(SAVED, record="../captures/step_1-3/info/window.json")
    _, said = told(tmp_path / "prof_config", ended(job), capsys)
    record = tmp_path.resolve() / "captures/step_1-3/info/window.json"
    assert said.splitlines()[0] == f"4 of 4 ranks saved it: {record}"

"""The output on all ranks of a job, in the leader's directory."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dynprof.cli.outcome import NOT_SERVED, RANK_LOST
from dynprof.cli.request_follower import report_job
from dynprof.cli.status import job_lines, screen
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import LEADS, JobStatus, Status, WindowStatus

if TYPE_CHECKING:
    import pytest

JOB = JobStatus(
    ranks=8,
    states={"idle": 6, "missing": 1, "saving": 1},
    request=4,
    asked=8,
    saved=6,
    pending=1,
    stragglers={5: "still saving", 7: "it does not answer"},
    remarks=("rank 3 counted its steps otherwise", "rank 2 was cut short: cancelled"),
    record="step_1-3/info/window.json",
)


def test_status_shows_a_bar_and_names_the_stragglers() -> None:
    """All ranks count, though only one status is here."""
    shown = Console(file=io.StringIO(), width=120)
    here = Status("idle", host="node9", heartbeat=time.time(), agreement=LEADS, job=JOB)
    with shown.capture() as captured:
        shown.print(screen([here], shown.width))
    lines = [line.strip() for line in captured.get().splitlines()]
    bar = "\N{FULL BLOCK}" * 15 + "\N{LIGHT SHADE}" * 5
    first = lines.index("rank 0 leads 8 ranks: 6 idle, 1 missing, 1 saving")
    assert lines[first + 1 :] == [
        f"request 4: 6 of 8 ranks saved {bar}",
        "rank 3 counted its steps otherwise",
        "rank 2 was cut short: cancelled",
        "rank 5: still saving",
        "rank 7: it does not answer",
    ]


def test_status_says_why_the_last_capture_was_cut_short() -> None:
    """Only the last one's reason is shown."""
    earlier = Answer(1, "a", 1.0, "saved", capture="step_1-3/info/rank_0.json", cut="cancelled")
    last = Answer(2, "b", 2.0, "saved", capture="step_5-9/info/rank_0.json", cut="calls are lost")
    here = Status("idle", heartbeat=time.time(), edits=(earlier, last), last_capture=last.capture)
    shown = Console(file=io.StringIO(), width=120)
    with shown.capture() as captured:
        shown.print(screen([here], shown.width))
    lines = [line.strip() for line in captured.get().splitlines()]
    assert lines[-2:] == [
        "rank 0: last capture: step_5-9/info/rank_0.json",
        "rank 0: cut short: calls are lost",
    ]


def test_status_says_why_the_last_request_failed() -> None:
    """The reason is shown until the next request."""
    lost = Answer(1, "a", 1.0, "failed", "no trace; the thread that it was opened on has ended")
    later = Answer(2, "b", 2.0, "saved", capture="step_5-9/info/rank_0.json")
    for edits, said in (((lost,), True), ((lost, later), False)):
        shown = Console(file=io.StringIO(), width=120)
        with shown.capture() as captured:
            shown.print(screen([Status("idle", heartbeat=time.time(), edits=edits)], shown.width))
        assert (f"rank 0: request 1 failed: {lost.text}" in captured.get()) == said


def test_a_cancelled_window_has_no_progress_bar() -> None:
    """The line says how it ended, without a bar."""
    job = replace(JOB, saved=0, pending=0, unsaved={"cancelled": 7, "failed": 1})
    here = Status("idle", host="node9", heartbeat=time.time(), agreement=LEADS, job=job)
    texts = [text for text, _ in job_lines(here)]
    assert texts[1] == "request 4: 0 of 8 ranks saved, cancelled on 7, failed on 1"


def test_a_cancelled_window_is_not_a_lost_rank(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If all other ranks cancelled it, the request counts as not served."""
    job = replace(JOB, asked=8, saved=1, pending=0, stragglers={}, unsaved={"cancelled": 7})
    assert report_job(Path("prof_config"), job) == NOT_SERVED
    assert report_job(Path("prof_config"), replace(job, saved=0)) == RANK_LOST
    assert capsys.readouterr().err.startswith("1 of 8 ranks saved it, cancelled on 7: prof_config/")


def test_remarks_on_a_window_are_printed_to_the_waiting_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The remarks follow the saved and the missing ranks."""
    assert report_job(Path("prof_config"), JOB) == RANK_LOST
    assert capsys.readouterr().err.splitlines() == [
        "6 of 8 ranks saved it: prof_config/step_1-3/info/window.json",
        "rank 5: still saving",
        "rank 7: it does not answer",
        *JOB.remarks,
    ]


def test_an_earlier_windows_result_is_printed_despite_a_later_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The window that replaced it belongs to another request."""
    earlier = (
        WindowStatus(2, asked=2, saved=1, stragglers={1: "it does not answer"}),
        WindowStatus(3, problems=("superseded by request 4",)),
    )
    job = replace(JOB, earlier=earlier)
    found = [job.of(number) for number in (1, 2, 3, 4, 5)]
    assert found == [None, *earlier, job, None]
    assert [report_job(Path("prof_config"), one) for one in earlier] == [RANK_LOST, NOT_SERVED]
    said = ["1 of 2 ranks saved it", "rank 1: it does not answer", "superseded by request 4"]
    assert capsys.readouterr().err.splitlines() == said


def test_a_window_without_an_agreement_counts_no_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command stopped to wait before the ranks agreed; that is no success."""
    job = WindowStatus(5, pending=None, stragglers={1: "waited for: it still saves"})
    assert report_job(Path("prof_config"), job, "actor") == RANK_LOST
    said = [
        "the actor ranks have not agreed on a step yet",
        "actor rank 1: waited for: it still saves",
    ]
    assert capsys.readouterr().err.splitlines() == said

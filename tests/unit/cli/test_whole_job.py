"""What is said of all ranks of a job, where the one that leads watches."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dynprof.cli.outcome import LOST
from dynprof.cli.status import screen
from dynprof.cli.whole_job import tell_of_all
from dynprof.journal.status import LEADS, JobStatus, Status

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
    """Of all ranks, though the status of one of them lies here."""
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


def test_who_waits_for_a_window_is_told_what_was_noticed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After who saved it, and who did not."""
    assert tell_of_all(Path("prof_config"), JOB, 4) == LOST
    assert capsys.readouterr().err.splitlines() == [
        "6 of 8 ranks saved it: prof_config/step_1-3/info/window.json",
        "rank 5: still saving",
        "rank 7: it does not answer",
        *JOB.remarks,
    ]

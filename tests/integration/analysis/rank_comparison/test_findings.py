"""Findings on one rank that need the traces of the others."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from dynprof.analysis.runs.window_report import report_on
from tests.rank_traces import MS, write

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "First see whether one rank keeps the others waiting"


def said(folder: Path) -> str:
    """Return the lines of a window's report in the terminal."""
    made = report_on(folder)
    return "\n".join([*made.words, *made.findings])


def test_the_late_ranks_longer_operator_is_found(tmp_path: Path) -> None:
    """Rank 2's matrix products take 30 ms longer; their number is the same."""
    for rank in range(4):
        write(tmp_path, rank, work_ms=30.0 * (rank == 2))
    words = said(tmp_path)
    (said_of_it,) = re.findall(
        r"Rank 2 keeps the others waiting: Its own work averages .*?\.", words
    )
    assert re.search(r"ms a step, the median of the others \d+", said_of_it)
    assert "It takes longer by 30 ms in aten::mm (1 time on both)." in words
    assert FIRST not in words
    assert "What follows is about rank 2, which others wait for.\n" in words
    assert '"title":"Rank 2 keeps the others waiting"' in report_on(tmp_path).path.read_text()


def test_a_rank_that_is_late_without_working_longer(tmp_path: Path) -> None:
    """The rank is late, but no operator takes longer: no operator is blamed."""
    for rank in range(4):
        write(tmp_path, rank, late_ms=30.0 * (rank == 2))
    words = said(tmp_path)
    assert "Rank 2 comes last to 5 of 5 collectives" in words
    assert "aten::mm, " not in words
    assert "It takes longer by 30 ms outside of operators." in words
    assert "\n1. Rank 2 keeps the others waiting: " in words
    page = report_on(tmp_path).path.read_text()
    assert '["(outside of operators)","host",1,1,30.0,0.0]' in page


def test_two_ranks_are_compared_with_each_other(tmp_path: Path) -> None:
    """This also works if the late rank has less own work, and so is the lower median."""
    write(tmp_path, 0, late_ms=30.0)
    write(tmp_path, 1)
    path = tmp_path / "rank1.pt.trace.json"
    trace = json.loads(path.read_text())
    alone = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "name": "ProfilerStep#5"}
    trace["traceEvents"].append({**alone, "ts": 500 * MS, "dur": 300 * MS})
    path.write_text(json.dumps(trace))
    late, other = 90 - 35, (5 * (90 - 65) + 300) / 6  # a step without its collective
    assert (
        "Rank 0 comes last to 5 of 5 collectives, 30.0 ms after the other rank; its own work "
        f"averages {late:.1f} ms a step, the other rank's {other:.1f} ms." in said(tmp_path)
    )


def test_exposed_communication_without_a_late_rank_names_what_to_check(tmp_path: Path) -> None:
    """Communication is exposed on all ranks: the report names what to check first."""
    for rank in range(4):
        write(tmp_path, rank)
    words = said(tmp_path)
    assert FIRST in words
    assert "What follows is about rank 0, which has the most work of its own: " in words
    assert "keeps the others waiting: Its" not in words

"""Ranks side by side: who comes last, on clocks that are not the same."""

from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis import many
from dynprof.analysis.captures import traces_in
from dynprof.analysis.many import analyse_each

if TYPE_CHECKING:
    from pathlib import Path

MS = 1000.0
STEPS = 5


def events(work_ms: float, late_ms: float, ahead_ms: float, rank: int) -> list[dict[str, Any]]:
    """Return a rank's events: load data, compute, then an all-reduce that ends for all at once."""
    found: list[dict[str, Any]] = []
    common = {"ph": "X", "pid": rank, "tid": 1}
    for number in range(STEPS):
        begin = (100 * number + ahead_ms) * MS
        compute = (10 + work_ms) * MS
        end = begin + 80 * MS
        arrived = begin + 5 * MS + compute + late_ms * MS
        spans = (
            (f"ProfilerStep#{number}", "user_annotation", begin, 90 * MS),
            ("dataloader", "user_annotation", begin, 5 * MS),
            ("aten::mm", "cpu_op", begin + 5 * MS, compute),
            ("gloo:all_reduce", "user_annotation", arrived, end - arrived),
        )
        for name, category, ts, dur in spans:
            found.append({**common, "name": name, "cat": category, "ts": ts, "dur": dur})
    return found


def write(folder: Path, rank: int, **settings: float) -> None:
    """Write a rank's trace."""
    trace = {
        "baseTimeNanoseconds": 10**18,
        "distributedInfo": {"rank": rank, "world_size": 4},
        "traceEvents": events(**{"work_ms": 0, "late_ms": 0, "ahead_ms": 0, **settings}, rank=rank),
    }
    (folder / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))


def test_the_late_rank_is_found_whatever_the_clocks_say(tmp_path: Path) -> None:
    """Rank 2 works 30 ms longer; rank 1's clock is 250 ms ahead and means nothing."""
    for rank in range(4):
        write(tmp_path, rank, work_ms=30.0 * (rank == 2), ahead_ms=250.0 * (rank == 1))
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    (verdict,) = outcome.verdicts[tmp_path]
    assert verdict.startswith("rank 2 comes last to 5 of 5 collectives, 30.0 ms after the median")
    with (tmp_path / "analysis" / "ranks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["Rank"], row["Step"]) for row in rows] == [
        (str(rank), str(step)) for rank in range(4) for step in range(STEPS)
    ]
    assert {row["Data Loading(us)"] for row in rows} == {"5000.000"}
    assert {row["Computing(us)"] for row in rows if row["Rank"] == "2"} == {"40000.000"}


@pytest.mark.parametrize("late_ms", [0.0, 0.5])
def test_scatter_is_no_straggler(tmp_path: Path, late_ms: float) -> None:
    """Less than a millisecond behind is not called late."""
    for rank in range(3):
        write(tmp_path, rank, late_ms=late_ms * (rank == 0))
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert outcome.verdicts[tmp_path] == []


def test_one_rank_is_compared_with_nobody(tmp_path: Path) -> None:
    """No table, no verdict."""
    write(tmp_path, 0)
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert outcome.verdicts == {}
    assert not (tmp_path / "analysis" / "ranks.csv").exists()


def test_two_processes_share_a_large_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they make together is what one makes alone, byte by byte."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, 0)
    alone = analyse_each(traces_in(tmp_path / "one"), ["text"], processes=1)
    monkeypatch.setattr(many, "LARGE", 1)
    together = analyse_each(traces_in(tmp_path / "two"), ["text"], processes=2)

    def contents(made: list[Path], folder: str) -> dict[Path, bytes]:
        return {path.relative_to(tmp_path / folder): path.read_bytes() for path in made}

    assert contents(alone.made, "one") == contents(together.made, "two")
    assert len(alone.made) > 5

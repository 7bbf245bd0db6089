"""Comparison of ranks with different clocks: the late rank is found."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dynprof.analysis.rank_comparison.comparison import Ranks
from dynprof.analysis.rank_comparison.parquet import connection
from dynprof.analysis.runs.many_traces import analyse_each
from dynprof.analysis.runs.one_trace import traces_in
from dynprof.errors import CaptureError
from tests.rank_tables import BEGAN_NS, Taken, compared
from tests.rank_tables import MS as NS_IN_MS
from tests.rank_traces import MS, STEPS, events, write
from tests.real_traces import H100


def test_the_late_rank_is_found_despite_different_clocks(tmp_path: Path) -> None:
    """Rank 2 works 30 ms longer. Rank 1's clock is 250 ms ahead, which does not matter."""
    for rank in range(4):
        write(tmp_path, rank, work_ms=30.0 * (rank == 2), ahead_ms=250.0 * (rank == 1))
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    verdict, *_ = outcome.verdicts[tmp_path]
    assert verdict.startswith("rank 2 comes last to 5 of 5 collectives, 30.0 ms after the median")
    with (tmp_path / "analysis" / "ranks.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["Rank"], row["Step"]) for row in rows] == [
        (str(rank), str(step)) for rank in range(4) for step in range(STEPS)
    ]
    assert {row["Data Loading(us)"] for row in rows} == {"5000.000"}
    assert {row["Computing(us)"] for row in rows if row["Rank"] == "2"} == {"40000.000"}


def test_the_slowest_rank_is_compared_with_the_median_one(tmp_path: Path) -> None:
    """Operators with the largest difference come first."""
    for rank in range(4):
        write(tmp_path, rank, work_ms=30.0 * (rank == 2))
    analyse_each(traces_in(tmp_path), ["text"], processes=1)
    with (tmp_path / "analysis" / "slowest_rank.csv").open(newline="") as file:
        first, *rest = csv.DictReader(file)
    assert (first["Name"], first["Where"]) == ("aten::mm", "host")
    assert (first["Count of Slowest"], first["Count of Median"]) == ("1", "1")
    assert float(first["Self Time of Slowest(us)"]) == 40_000
    assert float(first["Self Time of Median(us)"]) == 10_000
    assert float(first["Difference(us)"]) == 30_000
    assert {row["Name"] for row in rest} == {
        "dataloader", "gloo:all_reduce", "(outside of operators)", "(data loading)",
    }  # fmt: skip


def test_one_rank_among_4096_is_found(tmp_path: Path) -> None:
    """Parquet tables suffice, with clocks that are up to a second apart."""
    ranks, late_rank = 4096, 2652
    numbers = f"range({ranks}) r(rank), range(20) c(place)"
    ahead, late = "(hash(rank) % 1000000000)::BIGINT", f"(rank = {late_rank})::BIGINT * 5000000"
    begin = f"1700000000000000000 + place * 100000000 + {ahead} + (hash(rank, place) % 900000)"
    queries = {
        "steps": f"SELECT rank, {ranks} AS world_size, '' AS host, 7 AS step, 'host' AS device, "
        f"90000000 + {late} AS length_ns, 80000000 AS computing_ns, "
        "true AS recorded, 0 AS begin_ns, "
        "9000000 AS communication_ns, 0 AS overlapped_ns, "
        f"1000000 AS free_ns, 0 AS data_loading_ns FROM range({ranks}) r(rank)",
        "collectives": "SELECT rank, '' AS \"group\", place, 'all_reduce' AS name, "
        f"{begin} + {late} AS begin_ns, "
        f"1700000000090000000 + place * 100000000 + {ahead} AS end_ns, 7 AS step, "
        "'all reduce' AS kind, 4000000 AS size, -1 AS members, 0.0 AS factor, "
        f"-1 AS sender, -1 AS receiver FROM {numbers}",
        "operators": f"SELECT rank, 'aten::mm' AS name, 'host' AS place, 3.0 AS count, "
        f"(80000000 + {late})::DOUBLE AS self_ns FROM range({ranks}) r(rank)",
    }
    files = {name: [tmp_path / f"{name}.parquet"] for name in queries}
    with connection() as database:
        for name, query in queries.items():
            database.execute(f"COPY ({query}) TO '{files[name][0]}' (FORMAT parquet)")
    found = Ranks(files)
    (late_one,) = found.stragglers()
    assert (late_one.rank, late_one.last, late_one.of) == (late_rank, 20, 20)
    assert late_one.behind_ns == pytest.approx(5e6, rel=0.1)
    assert late_one.own_ns - late_one.others_ns == 5_000_000
    assert (len(found), found.slowest()) == (ranks, late_rank)
    assert found.operator_differences(late_rank, found.median()) == [
        ("aten::mm", "host", 3, 3, 85e6, 80e6),
        ("(outside of operators)", "host", 1, 1, 1e6, 1e6),
    ]


@pytest.mark.parametrize("name", ["run[1]", "run[0-9]"])
def test_a_folder_name_is_not_a_pattern(tmp_path: Path, name: str) -> None:
    """A folder whose name is a pattern does not match the tables of another folder."""
    for folder, late in ((tmp_path / "run1", 1), (tmp_path / name, 0)):
        folder.mkdir()
        for rank in range(2):
            write(folder, rank, work_ms=30.0 * (rank == late))
        outcome = analyse_each(traces_in(folder), ["text"], processes=1)
        assert not outcome.problems
        assert outcome.verdicts[folder][0].startswith(f"rank {late} comes last to 5 of 5")


def test_tables_of_an_older_version_are_refused(tmp_path: Path) -> None:
    """Old tables lack the columns that match ranks; the error says what to do."""
    files = {name: [tmp_path / f"{name}.parquet"] for name in ("steps", "collectives", "operators")}
    with connection() as database:
        for (path,) in files.values():
            database.execute(f"COPY (SELECT 0 AS rank, 1 AS step) TO '{path}' (FORMAT parquet)")
    with pytest.raises(CaptureError, match="cannot be read; run dynprof analyse again"):
        Ranks(files)


@pytest.mark.parametrize("late_ms", [0.0, 0.5])
def test_variation_is_no_straggler(tmp_path: Path, late_ms: float) -> None:
    """A delay of less than a millisecond is not called late."""
    for rank in range(3):
        write(tmp_path, rank, late_ms=late_ms * (rank == 0))
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert outcome.verdicts[tmp_path] == [
        "no rank keeps the others waiting",
        "missing here: 1 of 4 ranks",
    ]


def test_a_late_rank_on_a_busy_machine(tmp_path: Path) -> None:
    """Threads leave a collective some ms apart; the last one to arrive waited in it for one ms."""
    variation_ms = {0: (0, 0, 0, 0, 0), 1: (4, 0, 2, 0, 4), 2: (0, 1, 0, 2, 0)}
    for rank, apart in variation_ms.items():
        write(tmp_path, rank, work_ms=64.0 * (rank == 1))
        path = tmp_path / f"rank{rank}.pt.trace.json"
        trace = json.loads(path.read_text())
        together = [one for one in trace["traceEvents"] if one["name"] == "gloo:all_reduce"]
        for event, late in zip(together, apart, strict=True):
            event["dur"] += late * MS
        path.write_text(json.dumps(trace))
    verdict, *_ = analyse_each(traces_in(tmp_path), ["text"], processes=1).verdicts[tmp_path]
    assert verdict.startswith("rank 1 comes last to 5 of 5 collectives, 6")


def test_one_rank_is_not_compared(tmp_path: Path) -> None:
    """A single rank gives no table and no verdict."""
    write(tmp_path, 0)
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert outcome.verdicts == {}
    assert not (tmp_path / "analysis" / "ranks.csv").exists()


def test_groups_are_compared_among_themselves(tmp_path: Path) -> None:
    """In two groups of two, rank 3 keeps rank 2 waiting; 0 and 1 meet at other times."""
    for rank in range(4):
        name = f'"tp_{rank // 2}"'
        found = events(30.0 * (rank == 3), 0, 0, rank)
        for event in found:
            event["ts"] += 7 * MS * (rank // 2)
            if event["name"] == "gloo:all_reduce":
                members = [rank // 2 * 2, rank // 2 * 2 + 1]
                event["args"] = {"Process Group Name": name, "Process Group Ranks": members}
        trace = {"baseTimeNanoseconds": 10**18, "traceEvents": found,
                 "distributedInfo": {"rank": rank, "world_size": 4}}  # fmt: skip
        (tmp_path / f"rank{rank}.pt.trace.json").write_text(json.dumps(trace))
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    (verdict,) = outcome.verdicts[tmp_path]
    assert verdict.startswith("rank 3 comes last to 5 of 5 collectives, 30.0 ms after the median")


def test_output_names_what_cannot_be_compared(tmp_path: Path) -> None:
    """The output names an additional first collective, a missing rank and an older capture."""
    for rank in range(3):
        write(tmp_path, rank)
    first = json.loads((tmp_path / "rank1.pt.trace.json").read_text())
    extra = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "name": "gloo:broadcast",
             "ts": 1, "dur": 1}  # fmt: skip
    first["traceEvents"].append(extra)
    (tmp_path / "rank1.pt.trace.json").write_text(json.dumps(first))
    older = tmp_path / "other.rank0.pt.trace.json"
    older.write_text((tmp_path / "rank0.pt.trace.json").read_text())
    os.utime(older, (1, 1))
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    matched, missing, left = outcome.verdicts[tmp_path]
    assert matched.startswith("0 of 6 collectives could be matched between all ranks of their")
    assert missing == "missing here: 1 of 4 ranks"
    assert left == "left out: 1 older capture of the same ranks"


def test_ranks_without_collectives(tmp_path: Path) -> None:
    """An empty trace and traces without collectives are analysed; the output says so."""
    (tmp_path / "a.pt.trace.json").write_text('{"traceEvents": []}')
    for rank in range(1, 3):
        write(tmp_path, rank)
        path = tmp_path / f"rank{rank}.pt.trace.json"
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [e for e in trace["traceEvents"] if "gloo" not in e["name"]]
        path.write_text(json.dumps(trace))
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert outcome.problems == {}
    said, *_ = outcome.verdicts[tmp_path]
    assert said == "no collective was recorded, so it is unknown which rank waits for which"


def test_gloo_collectives_of_ranks_with_a_device_are_compared(tmp_path: Path) -> None:
    """Two real ranks share a GPU and use gloo: its spans on the host are compared."""
    for rank in range(2):
        path = tmp_path / f"rank{rank}.pt.trace.json.gz"
        path.write_bytes((H100 / f"ddp_rank{rank}.json.gz").read_bytes())
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    said, *_ = outcome.verdicts[tmp_path]
    assert said.startswith("rank 1 comes last to 2 of 9 collectives, 1.2 ms after the other rank")
    assert any(path.name == "links.csv" for path in outcome.made)


def test_empty_captures_are_no_problem(tmp_path: Path) -> None:
    """Captures without steps and ranks give neither a verdict nor a problem."""
    for name in "ab":
        (tmp_path / f"{name}.pt.trace.json").write_text('{"traceEvents": []}')
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    assert (outcome.problems, outcome.verdicts) == ({}, {})


def test_a_name_that_is_not_text_is_refused(tmp_path: Path) -> None:
    """The error names the trace; the others are analysed."""
    write(tmp_path, 0)
    odd = os.fsencode(tmp_path) + b"/\xff.trace.json"
    Path(os.fsdecode(odd)).write_bytes((tmp_path / "rank0.pt.trace.json").read_bytes())
    outcome = analyse_each(traces_in(tmp_path), ["text"], processes=1)
    (problem,) = outcome.problems.values()
    assert problem.endswith("is not UTF-8; rename it")
    assert len(outcome.made) > 5


def test_links_below_analysis_are_not_followed(tmp_path: Path) -> None:
    """A link to a folder or a file there is not followed; the targets stay unchanged."""
    (tmp_path / "window").mkdir()
    write(tmp_path / "window", 0)
    (victim := tmp_path / "victim").write_text("mine")
    folder = tmp_path / "window" / "analysis" / "rank0.pt"
    folder.mkdir(parents=True)
    (folder / "stacks.folded").symlink_to(victim)
    outcome = analyse_each(traces_in(tmp_path / "window"), ["text"], processes=1)
    assert (outcome.problems, victim.read_text()) == ({}, "mine")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "window" / "analysis").rename(tmp_path / "old")
    (tmp_path / "window" / "analysis").symlink_to(tmp_path / "elsewhere")
    outcome = analyse_each(traces_in(tmp_path / "window"), ["text"], processes=1)
    (problem,) = outcome.problems.values()
    assert "symbolic link" in problem
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_database_of_the_ranks_is_written_on_request(tmp_path: Path) -> None:
    """The vendor's table has a row in us for each step of each rank. Text output makes none."""
    for rank in range(3):
        write(tmp_path, rank, work_ms=10 * rank)
    traces = traces_in(tmp_path)
    analyse_each(traces, ["text"], processes=1)
    assert not (tmp_path / "analysis" / "analysis.db").exists()
    outcome = analyse_each(traces, ["db"], processes=1)
    path = tmp_path / "analysis" / "analysis.db"
    assert path in outcome.made
    with closing(sqlite3.connect(path)) as database:
        found = database.execute(
            'SELECT "index", count(*), sum(computing), sum(communication), sum(bubble), '
            "min(stage), min(preparing) FROM ClusterStepTraceTime WHERE type = 'rank' GROUP BY 1"
        ).fetchall()
        steps = database.execute("SELECT DISTINCT step FROM ClusterStepTraceTime").fetchall()
    assert [number for (number,) in steps] == ["0", "1", "2", "3", "4"]
    for rank, (index, count, computing, communication, *rest) in enumerate(found):
        assert (index, count, rest) == (str(rank), 5, [0, 75_000, 5_000])
        assert computing == pytest.approx(5 * (10_000 + 10_000 * rank))
        assert communication == pytest.approx(5 * (65_000 - 10_000 * rank))


@pytest.mark.parametrize("is_held_up", [True, False])
def test_a_rank_whose_data_comes_late_keeps_no_other_waiting(
    tmp_path: Path, *, is_held_up: bool
) -> None:
    """Over a slow link rank 0 leaves each collective late, and so comes late to the next."""
    taken: list[list[Taken]] = [[], []]
    for step in range(5):
        for rank, mine in enumerate(taken):
            comes_ms = 500 * step + 50 + 135 * (rank == 0)
            leaves_ms = 500 * step + 500 + 135 * (rank == 0 and is_held_up)
            times = (BEGAN_NS + ms * NS_IN_MS for ms in (comes_ms, leaves_ms))
            mine.append(Taken(step, step, *times))
    found = compared(tmp_path, ["a", "a"], taken)
    said, *_ = found.words()
    assert said.startswith("rank 0 comes last to 5 of 5 collectives, 135.0 ms after the other rank")
    assert ("look at the link between the ranks" in said) == is_held_up
    assert [one.rank for one in found.stragglers()] == ([] if is_held_up else [0])
    assert ("which others wait for" in found.slowest_and_why()) != is_held_up

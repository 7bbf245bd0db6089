"""Ranks of one window, with traces in folders of different steps, are joined by their request."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.runs.many_traces import analyse_each, read_ranks
from dynprof.analysis.runs.one_trace import traces_in
from dynprof.analysis.runs.recorded_window import window_below
from dynprof.analysis.runs.remote_files import Workspace
from dynprof.analysis.runs.window_report import report_on
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.captures.window_record import WindowRecord
from tests.processes import DYNPROF, run
from tests.rank_traces import write

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from dynprof.analysis.rank_comparison.comparison import Ranks

EDITED = "2026-11-22T06:47:15.736+00:00"


def saved(
    folder: Path,
    rank: int,
    first: int = 0,
    edited_at: str = EDITED,
    config: dict[str, JsonValue] | None = None,
    **settings: float,
) -> Path:
    """Write the trace of a rank that begins at a step, with its manifest; return the trace."""
    window = folder / f"step_{first}-4_20261122T064715Z"
    (window / "info").mkdir(parents=True, exist_ok=True)
    write(window, rank, **settings)
    path = window / f"rank{rank}.pt.trace.json"
    trace = json.loads(path.read_text())
    begun = 100_000 * first + 1000 * settings.get("ahead_ms", 0)
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e["ts"] >= begun]
    path.write_text(json.dumps(trace))
    Manifest(
        dynprof="0", backend="torch", versions={}, host="h", pid=rank, rank=rank, world_size=4,
        request=RequestRecord(
            number=1 + rank, edited_at=edited_at, sha256="a", config=config or {}
        ),
        steps=Steps(first=first, last=4, recorded=5 - first, warmup=0), opened_at="", closed_at="",
        activities=("CPU",), complete=True, trace=path.name, cost=Cost(open_ms=0, close_ms=0),
    ).save(window / "info" / f"rank_{rank}.info.json")  # fmt: skip
    os.utime(path, (rank + 1, rank + 1))
    return path


def record(window: Path, asked: tuple[int, ...]) -> None:
    """Write the record of a window that requested some of four ranks."""
    WindowRecord(
        dynprof="0", leader="", world_size=4, start_step=0, first=0, last=4, asked=asked, ranks={},
        missing={}, request=RequestRecord(number=1, edited_at=EDITED, sha256="a", config={}),
        agreed_ms=1, complete=True,
    ).save(window / "info" / "window.json")  # fmt: skip


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """Return a folder in which rank 3 began a step later, and works 30 ms longer."""
    for rank in range(4):
        saved(tmp_path, rank, first=int(rank == 3), work_ms=30.0 * (rank == 3))
    return tmp_path


def test_top_shows_the_lowest_rank_and_names_the_others(tmp_path: Path) -> None:
    """Which rank was written last is chance; a trace that is named is shown itself."""
    for rank in (0, 1):
        write(tmp_path, rank)
        place = next(path for path in tmp_path.iterdir() if f"rank{rank}" in path.name)
        os.utime(place, (1e9 + rank, 1e9 + rank))
    shown = run([*DYNPROF, "top", tmp_path]).stdout
    assert ", rank 0 of ranks 0 to 1\n" in shown
    assert "of ranks" not in run([*DYNPROF, "top", place]).stdout
    place.write_text("no trace")
    done = run([*DYNPROF, "top", tmp_path])
    assert (done.returncode, done.stderr) == (0, "")  # the other rank was not even read
    write(tmp_path, 1)
    lowest = next(path for path in tmp_path.iterdir() if "rank0" in path.name)
    lowest.write_text("no trace")
    done = run([*DYNPROF, "top", tmp_path])
    assert ", rank 1 of ranks 0 to 1\n" in done.stdout
    assert done.stderr.startswith(f"skipped: {lowest} is not a trace")


def test_a_window_is_joined_by_its_request(apart: Path) -> None:
    """The parent folder and each of the folders give the window; a given trace stays alone."""
    folders = sorted(path for path in apart.iterdir())
    assert len(folders) == 2
    for path in (apart, *folders):
        assert {int(trace.name[4]) for trace in window_below(path)} == {0, 1, 2, 3}
    (alone,) = window_below(folders[1] / "rank3.pt.trace.json")
    assert alone == folders[1] / "rank3.pt.trace.json"


def test_another_request_of_the_same_second_is_not_joined(apart: Path) -> None:
    """A folder of another request is not joined, although its name has the same second."""
    saved(apart, 2, first=2, edited_at="2026-11-22T06:47:15.999+00:00")
    os.utime(apart / "step_2-4_20261122T064715Z" / "rank2.pt.trace.json", (1, 1))
    assert {trace.parent.name[5] for trace in window_below(apart)} == {"0", "1"}
    late = window_below(apart / "step_2-4_20261122T064715Z")
    assert [trace.parent.name[5] for trace in late] == ["2"]


def test_the_report_is_on_all_of_them(apart: Path) -> None:
    """The report names the differing steps. The common steps show the late rank."""
    words = report_on(apart).words
    assert words[0].startswith("Rank 3 comes last to 4 of 4 collectives, 30.0 ms after the median")
    assert "The ranks recorded different steps: ranks 0, 1, 2 steps 0 to 4, rank 3 steps 1 to 4; " \
        "steps 1 to 4 on all." in words  # fmt: skip
    joined = "Joined by their request: step_0-4_20261122T064715Z, step_1-4_20261122T064715Z."
    assert joined in words


def test_collectives_are_matched_from_the_first_common_step(apart: Path) -> None:
    """Matching begins at the common step, so no clock seems a step ahead of the others."""
    report_on(apart)
    traces = window_below(apart)
    ranks: Ranks = read_ranks(traces, Workspace(apart))
    assert ranks.clocks() == dict.fromkeys(range(4), (0, 0))


def test_ranks_without_a_common_step_are_not_compared(tmp_path: Path) -> None:
    """The output says that they have no common step."""
    for rank in range(2):
        path = saved(tmp_path, rank)
        if rank:
            path.write_text(path.read_text().replace("ProfilerStep#", "ProfilerStep#7"))
    words = report_on(tmp_path).words
    assert any(text.endswith("rank 1 steps 70 to 74; no step on all.") for text in words)
    assert not any("comes last" in text for text in words)


@pytest.mark.parametrize("told_by", ["record", "config"])
@pytest.mark.parametrize(("ranks", "missing"), [("1-2", 0), ("0-2", 1)])
def test_ranks_that_were_not_asked_are_not_missing(
    tmp_path: Path, told_by: str, ranks: str, missing: int
) -> None:
    """Two of four ranks have saved. The window's record or the config names the requested ones."""
    config: dict[str, JsonValue] = {"ranks": ranks} if told_by == "config" else {}
    traces = [saved(tmp_path, rank, config=config) for rank in (1, 2)]
    asked = tuple(range(int(ranks[0]), 3))
    if told_by == "record":
        record(traces[0].parent, asked)
    folder = traces[0].parent
    verdicts = analyse_each(traces_in(folder), ["text"], processes=1).verdicts[folder]
    for words in (report_on(tmp_path).words, [f"{words.capitalize()}." for words in verdicts]):
        found = [text for text in words if text.startswith("Missing here")]
        assert found == [f"Missing here: 1 of {len(asked)} ranks."] * missing

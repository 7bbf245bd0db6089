"""Marks of a script are among the events, however they were set; ranges name phases."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from dynprof.analysis.measures.marks import KINDS
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.rank_comparison.parquet import write_events
from dynprof.analysis.report.contents import contents

if TYPE_CHECKING:
    from pathlib import Path

STEP = {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "ts": 100, "dur": 1000}
ODD = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 150, "s": "t"}


def mark(name: str, at: float, domain: str = "default", tid: int = 1) -> dict[str, Any]:
    """Return a moment in dynprof's format."""
    args = {"domain": domain}
    return {"ph": "i", "cat": "mstx", "name": name, "ts": at, "tid": tid, "args": args, "s": "t"}


def nested(name: str, at: float, dur: float, domain: str = "default") -> dict[str, Any]:
    """Return a range that nests: push and pop."""
    event = {"ph": "X", "cat": "user_annotation", "name": name, "ts": at, "dur": dur}
    return {**event, "args": {"domain": domain}}


def crossing(name: str, number: int, at: float, dur: float, tid: int = 1) -> list[dict[str, Any]]:
    """Return a range that may cross others: start and end."""
    event = {"cat": "mstx", "name": name, "id": number, "tid": tid, "args": {"domain": "io"}}
    return [{**event, "ph": "b", "ts": at}, {**event, "ph": "e", "ts": at + dur}]


def written(path: Path, events: list[dict[str, Any]]) -> MeasuredTrace:
    """Write these events, and read the trace."""
    whole = [{"pid": 9, "tid": 1, **event} for event in [STEP, ODD, *events]]
    path.write_text(json.dumps({"baseTimeNanoseconds": 5, "traceEvents": whole}))
    return MeasuredTrace(path)


def test_every_mark_is_read(tmp_path: Path) -> None:
    """Moments, nested ranges and crossing ranges have domain, thread and number."""
    events = [
        mark("here", 200.001), mark("there", 300, "io", tid=2), nested("inner", 210, 5.5),
        *crossing("one", 1, 220, 100), *crossing("two", 2, 250, 200, tid=2),
    ]  # fmt: skip
    measured = written(tmp_path / "a.trace.json", events)
    trace, found = measured.trace, measured.marks
    shown = [
        (
            trace.name(place),
            KINDS[kind],
            int(trace.spans["start"][place]),
            int(trace.spans["length"][place]),
            trace.tables["thread"][trace.spans["thread"][place]][1],
            domain,
            number,
        )
        for place, kind, domain, number in zip(
            found.span.tolist(), found.kind.tolist(), found.domain, found.range_id, strict=True
        )
    ]
    assert shown == [
        ("here", "marker", 200_001, 0, 1, "default", -1),
        ("inner", "push/pop", 210_000, 5_500, 1, "default", -1),
        ("one", "start/end", 220_000, 100_000, 1, "io", 1),
        ("two", "start/end", 250_000, 200_000, 2, "io", 2),
        ("there", "marker", 300_000, 0, 2, "io", -1),
    ]


def test_a_range_without_an_end_is_left_out(tmp_path: Path) -> None:
    """In a truncated trace its duration is unknown; the other ranges stay."""
    events = [crossing("truncated", 7, 200, 1)[0], *crossing("whole", 8, 210, 10)]
    measured = written(tmp_path / "a.trace.json", events)
    assert [measured.trace.name(place) for place in measured.marks.span] == ["whole"]


def test_the_events_table_has_marks(tmp_path: Path) -> None:
    """Marks have kind and domain; other events have neither."""
    events = [mark("here", 200), nested("inner", 210, 5), *crossing("one", 1, 220, 100)]
    measured = written(tmp_path / "a.trace.json", events)
    (path,) = write_events(measured, tmp_path)
    query = f"SELECT name, start_ns, duration_ns, domain, mark FROM '{path}' ORDER BY start_ns"
    assert duckdb.execute(query).fetchall() == [
        ("ProfilerStep#3", 100_005, 1_000_000, None, None),
        ("here", 200_005, 0, "default", "marker"),
        ("inner", 210_005, 5_000, "default", "push/pop"),
        ("one", 220_005, 100_000, "io", "start/end"),
    ]


NVTX = {"ph": "X", "cat": "nvtx", "name": "backward", "ts": 300, "dur": 250}


@pytest.mark.parametrize(
    "events",
    [
        [nested("backward", 300, 250)],
        crossing("backward", 1, 300, 250, tid=4),
        [{**STEP, "name": "## backward ##", "ts": 300, "dur": 250}],
        [NVTX],
        [nested("backward", 300, 200), *crossing("Backward", 1, 400, 150)],
    ],
)
def test_ranges_name_phases_however_they_were_set(
    tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    """Ranges of mstx, record_function and NVTX count, nested or not; overlaps count once."""
    (phases,) = written(tmp_path / "a.trace.json", events).phases
    assert phases["backward"] == 250_000
    assert phases["rest"] == 750_000


def test_the_plugins_range_of_a_step_is_neither_phase_nor_step(tmp_path: Path) -> None:
    """``step N`` changes only the table of marks on the page."""
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 300, "dur": 40}
    events = [*crossing("forward", 1, 200, 250), *crossing("backward", 2, 500, 250), operator]
    around = [*crossing("step 2", 3, 90, 20), *crossing("step 3", 4, 110, 980)]
    without = written(tmp_path / "a.trace.json", events)
    within = written(tmp_path / "b.trace.json", [*events, *around])
    assert within.phases == without.phases
    assert within.phases[0]["rest"] == 500_000
    assert within.steps == without.steps
    pages = [contents(one) for one in (without, within)]
    marked = [page.pop("marks")["rows"] for page in pages]
    named = [(page.pop("title"), page.pop("about")) for page in pages]
    assert named[0] != named[1]  # by their file
    for page in pages:
        # The first event is a range on one page, so that other times count from there.
        del page["timeline"]["file"], page["timeline"]["begin"]
        page["findings"] = [one | {"at": None} for one in page["findings"]]
    assert [row[0] for row in marked[0]] == ["forward", "backward"]
    assert sorted(row[0] for row in marked[1]) == ["backward", "forward", "step 2", "step 3"]
    assert pages[0] == pages[1]


def test_a_moment_is_not_a_phase(tmp_path: Path) -> None:
    """A moment with a phase's name does not hide another sign of the phase."""
    engine = "autograd::engine::evaluate_function: AddmmBackward0"
    operator = {"ph": "X", "cat": "cpu_op", "name": engine, "ts": 300, "dur": 40}
    (phases,) = written(tmp_path / "a.trace.json", [mark("backward", 500), operator]).phases
    assert phases["backward"] == 40_000


def test_the_page_has_ranges_with_times_and_moments_without(tmp_path: Path) -> None:
    """There is a row for each name, kind and domain, with times in ms."""
    events = [
        mark("here", 200), mark("here", 300), nested("inner", 210, 5), nested("inner", 400, 7),
        *crossing("one", 1, 220, 100),
    ]  # fmt: skip
    said = contents(written(tmp_path / "a.trace.json", events))["marks"]
    assert said["rows"] == [
        ["here", "marker", "default", 2, 0.1, None, None],
        ["inner", "push/pop", "default", 2, 0.11, 0.012, 0.007],
        ["one", "start/end", "io", 1, 0.12, 0.1, 0.1],
    ]

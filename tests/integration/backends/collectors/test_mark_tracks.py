"""One capture with all kinds of marks: their tracks, Perfetto's view, and the tables."""

from __future__ import annotations

import csv
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.contents import contents
from dynprof.backends.collectors.marks import BEGAN_BEFORE, ENDS_AFTER
from dynprof.marks.native.library import PATH
from tests.integration.backends.collectors.marked_job import captured
from tests.integration.commands import dynprof
from tests.integration.perfetto import asked, needs_browser, opened
from tests.real_traces import everything

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(not PATH.exists(), reason="no C compiler was here at the build")
STEPS = 3
IN_A_STEP = {
    "io": {"read shard", "write metrics"},
    "phases": {"dataloader", "optimizer.zero_grad", "forward", "backward", "optimizer.step"},
    "tokens": {"split", "look up", "shard is read"},
}
TRACKS = {"marks: io": 2, "marks: phases": 1, "marks: tokens": 1}
"""The number of tracks of each domain: two if ranges cross."""


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the trace of a window of a marked job."""
    pytest.importorskip("torch", reason="torch is not installed")
    return captured(tmp_path_factory.mktemp("marked"), STEPS)[0]


@pytest.fixture(scope="module")
def raw(capture: Path) -> list[dict[str, Any]]:
    """Return all events, found by Python's own reader, with times in whole ns."""
    return everything(capture)


def marks_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the marks in the order of time."""
    return sorted((e for e in events if e["kind"] == "mstx"), key=lambda event: event["begin"])


def is_step(name: str) -> bool:
    """Return whether this is the plugin's range of a step."""
    return name.startswith("step ")


def steps_of(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Return the start and end of each step."""
    found = [e for e in events if e["name"].startswith("ProfilerStep#") and e["ph"] == "X"]
    return sorted((e["begin"], e["end"]) for e in found)


def test_each_domain_has_a_track_of_its_own(raw: list[dict[str, Any]]) -> None:
    """A domain has one track, or more if ranges cross. Tracks have only marks."""
    names = {e["tid"]: e["args"]["name"] for e in raw if e["name"] == "thread_name"}
    tracks = {tid: name for tid, name in names.items() if name.startswith("marks: ")}
    assert Counter(tracks.values()) == TRACKS
    for event in raw:
        if event["kind"] == "mstx":
            assert tracks[event["tid"]] == f"marks: {event['args']['domain']}"
        else:
            assert event["tid"] not in tracks or event["ph"] == "M"


def test_each_step_has_each_mark_once(raw: list[dict[str, Any]]) -> None:
    """Marks of the script, of C and of the plugin are whole, and within their step."""
    steps = steps_of(raw)
    assert len(steps) == STEPS
    for begin, end in steps:
        mine = [e for e in marks_of(raw) if begin <= e["begin"] <= e["end"] <= end]
        found: dict[str, list[str]] = defaultdict(list)
        for event in mine:
            assert "cut" not in event["args"]
            found[event["args"]["domain"]].append(event["name"])
        assert {domain: sorted(names) for domain, names in found.items()} == {
            domain: sorted(names) for domain, names in IN_A_STEP.items()
        }
    around = [e for e in marks_of(raw) if is_step(e["name"])]
    assert len(around) == STEPS + 1  # from one optimizer step to the next, across the window's ends
    assert [e["args"].get("cut") for e in around] == [BEGAN_BEFORE, None, None, ENDS_AFTER]
    assert len(marks_of(raw)) == len(around) + STEPS * sum(map(len, IN_A_STEP.values()))
    assert {e["name"] for e in marks_of(raw) if e["ph"] == "i"} == {"shard is read"}


def test_ranges_that_cross_are_whole(raw: list[dict[str, Any]]) -> None:
    """Each has its full length, on two tracks, with the name of the thread that began it."""
    marks = marks_of(raw)
    reads = [e for e in marks if e["name"] == "read shard"]
    writes = [e for e in marks if e["name"] == "write metrics"]
    for read, write in zip(reads, writes, strict=True):
        assert read["begin"] < write["begin"] < read["end"] < write["end"]
        assert read["tid"] != write["tid"]
    threads = {e["name"]: e["args"]["thread"] for e in marks}
    assert threads["read shard"] == threads["forward"] == threads["dataloader"]
    assert threads["write metrics"] == threads["split"] == threads["shard is read"]
    assert threads["read shard"] != threads["write metrics"]
    assert {e["tid"] for e in raw if e["name"] == "aten::addmm"} == {threads["forward"]}


SHOWN = """
SELECT t.name, t.tid, s.name, s.ts, s.dur FROM slice s JOIN thread_track k ON s.track_id = k.id
JOIN thread t USING (utid) WHERE t.name LIKE 'marks: %' ORDER BY s.ts
"""
WRONG = "SELECT name, value FROM stats WHERE severity IN ('error', 'data_loss') AND value > 0"


@needs_browser
def test_perfetto_shows_tracks_names_and_times(capture: Path, raw: list[dict[str, Any]]) -> None:
    """Perfetto's tables have the tracks, names and times, and Perfetto reports no error."""
    expected = [
        (f"marks: {e['args']['domain']}", str(e["tid"]), e["name"], e["end"] - e["begin"])
        for e in marks_of(raw)
    ]
    with opened(capture) as page:
        assert asked(page, WRONG) == []
        shown = asked(page, SHOWN)
    found = [(track, tid, name, max(0, int(dur))) for track, tid, name, _, dur in shown]
    assert sorted(found) == sorted(expected)
    first = min(e["begin"] for e in marks_of(raw))
    begins = sorted(int(row[3]) - int(shown[0][3]) for row in shown)
    assert begins == sorted(e["begin"] - first for e in marks_of(raw))


@pytest.fixture(scope="module")
def tables(capture: Path) -> Path:
    """Return the folder that ``dynprof analyse`` fills."""
    types = ("--export-type", "text", "--export-type", "db")
    code, _, errors = dynprof("analyse", capture, *types)
    assert code == 0, errors
    return capture.parent / "analysis"


Plain = tuple[str, str, str, int, int, int]
"""Name, kind, domain, start and end in ns since the epoch, thread."""


def plain(capture: Path) -> list[Plain]:
    """Return the marks by a plain count."""
    base = MeasuredTrace(capture).base_ns
    return sorted(
        (e["name"], e["args"].get("kind", "marker"), e["args"]["domain"],
         base + e["begin"], base + e["end"], e["args"]["thread"])
        for e in marks_of(everything(capture))
    )  # fmt: skip


def of_csv(folder: Path) -> Iterator[Plain]:
    """Yield the rows of the vendor's table."""
    (path,) = folder.rglob("msprof_tx.csv")
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            begin, end = (int(row[f"{at}_time(us)"].replace(".", "")) for at in ("Start", "End"))
            yield row["message"], row["event_type"], row["domain"], begin, end, int(row["tid"])


def of_parquet(folder: Path) -> Iterator[Plain]:
    """Yield the marks among the events."""
    (path,) = folder.rglob("events.parquet")
    query = (
        "SELECT name, mark, domain, start_ns, start_ns + duration_ns, tid::BIGINT "
        f"FROM '{path}' WHERE mark IS NOT NULL"
    )
    yield from duckdb.execute(query).fetchall()


def of_database(folder: Path) -> Iterator[Plain]:
    """Yield the rows of the vendor's database."""
    (path,) = folder.rglob("ascend_pytorch_profiler*.db")
    with closing(sqlite3.connect(path)) as database:
        yield from database.execute(
            "SELECT m.value, e.name, d.value, x.startNs, x.endNs, x.globalTid & 4294967295 "
            "FROM MSTX_EVENTS x JOIN STRING_IDS m ON m.id = x.message "
            "JOIN ENUM_MSTX_EVENT_TYPE e ON e.id = x.eventType "
            "JOIN STRING_IDS d ON d.id = x.domainId"
        )


@pytest.mark.parametrize("kind", [of_csv, of_parquet, of_database])
def test_each_table_matches_a_plain_count(capture: Path, tables: Path, kind: Any) -> None:
    """Tables have every mark with name, kind, domain, thread, and times in ns; and no other."""
    assert sorted(kind(tables)) == plain(capture)


def test_the_report_matches_a_plain_count(capture: Path) -> None:
    """A row for each name, kind and domain has the number, the total time and the longest time."""
    times = defaultdict(list)
    for name, kind, domain, begin, end, _ in plain(capture):
        times[name, kind, domain].append((end - begin) / 1e6)
    said = contents(MeasuredTrace(capture))["marks"]
    names = [row[0] for row in said["rows"] if not is_step(row[0])]
    assert len(names) == sum(map(len, IN_A_STEP.values()))
    assert said["count"] == len(times) == len(names) + STEPS + 1
    for name, kind, domain, count, _, total, longest in said["rows"]:
        mine = times[name, kind, domain]
        assert count == len(mine) == (1 if is_step(name) else STEPS)
        if kind == "marker":
            assert (total, longest) == (None, None)
        else:
            assert (total, longest) == pytest.approx((sum(mine), max(mine)), abs=1e-6)

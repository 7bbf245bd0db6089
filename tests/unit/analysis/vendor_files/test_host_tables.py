"""Device calls and the script's marks, in table and database, exact to the nanosecond."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import statistics
import threading
from collections import defaultdict
from contextlib import closing
from typing import TYPE_CHECKING
from zlib import crc32

import pytest

import dynprof.mstx as mstx
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.vendor_files.database import write_database
from dynprof.analysis.vendor_files.tables import host_tables, write_tables
from dynprof.backends.collectors.marks import Domains, MarkTracks
from tests.real_traces import on_each, raw_events
from tests.unit.analysis.vendor_files.captured import captured

if TYPE_CHECKING:
    from pathlib import Path

CALLS = {"cuda_runtime": "acl", "runtime": "acl", "cuda_driver": "runtime"}


def table(measured: MeasuredTrace, name: str, folder: Path) -> list[dict[str, str]]:
    """Return the rows of a table; none if it is not written."""
    made = {path.name: path for path in write_tables(host_tables(measured), folder)}
    if name not in made:
        return []
    return list(csv.DictReader(io.StringIO(made[name].read_text())))


@on_each
def test_statistics_of_calls(tmp_path: Path, path: Path) -> None:
    """Each call has count, sum, mean, extremes and variance."""
    times = defaultdict(list)
    for event in raw_events(path):
        if layer := CALLS.get(str(event.get("cat")).lower()):
            times[layer, event["name"]].append(float(event["dur"]))
    rows = table(MeasuredTrace(path), "api_statistic.csv", tmp_path)
    assert {(row["Level"], row["API Name"]) for row in rows} == set(times)
    for row in rows:
        mine = times[row["Level"], row["API Name"]]
        assert int(row["Count"]) == len(mine)
        expected = (sum(mine), statistics.mean(mine), min(mine), max(mine))
        found = [float(row[name]) for name in ("Time(us)", "Avg(us)", "Min(us)", "Max(us)")]
        assert found == pytest.approx(expected, abs=0.002)
        assert float(row["Variance"]) == pytest.approx(
            statistics.pvariance(mine), rel=1e-6, abs=0.01
        )


def test_every_kind_of_mark_is_in_table_and_database(tmp_path: Path) -> None:
    """Each kind of mark is in trace, table and database."""
    track = MarkTracks(Domains())
    track.start()
    mstx.mark("here")
    mstx.range_push("outer", domain="io")
    crossing = mstx.range_start("crossing")
    mstx.range_pop(domain="io")
    thread = threading.Thread(target=mstx.range_end, args=(crossing,))
    thread.start()
    thread.join()
    with mstx.annotate("forward"):
        pass
    track.stop()
    measured = captured(tmp_path, [], added=track.events(), mstx=True)
    rows = table(measured, "msprof_tx.csv", tmp_path)
    expected = [
        ("here", "marker", "default"), ("outer", "push/pop", "io"),
        ("crossing", "start/end", "default"), ("forward", "start/end", "default"),
    ]  # fmt: skip
    assert [(row["message"], row["event_type"], row["domain"]) for row in rows] == expected
    assert rows[2]["mark_id"] == str(crossing)
    assert rows[0]["Start_time(us)"] == rows[0]["End_time(us)"]
    write_database(measured, tmp_path / "a.db")
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        found = database.execute(
            "SELECT m.value, e.name, d.value, x.startNs, x.endNs, x.globalTid & 4294967295 "
            "FROM MSTX_EVENTS x JOIN STRING_IDS m ON m.id = x.message "
            "JOIN ENUM_MSTX_EVENT_TYPE e ON e.id = x.eventType "
            "JOIN STRING_IDS d ON d.id = x.domainId ORDER BY x.startNs"
        ).fetchall()
    assert [row[:3] for row in found] == expected
    for row, (*_, begin, end, tid) in zip(rows, found, strict=True):
        assert row["Start_time(us)"] == f"{begin // 1000}.{begin % 1000:03d}"
        assert row["End_time(us)"] == f"{end // 1000}.{end % 1000:03d}"
        assert tid == threading.get_native_id()


def test_a_named_thread_has_the_same_number_in_every_process(tmp_path: Path) -> None:
    """Python's own hash of a text differs between processes."""
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "ts": 0, "dur": 5}
    path = tmp_path / "named.json"
    path.write_text(json.dumps({"traceEvents": [{**event, "pid": "main", "tid": "loop"}]}))
    database = tmp_path / "named.db"
    write_database(MeasuredTrace(path), database)
    with closing(sqlite3.connect(database)) as opened:
        (found,) = opened.execute("SELECT globalTid FROM PYTORCH_API").fetchone()
    assert found == (crc32(b"main") & 0x7FFFFFFF) << 32 | crc32(b"loop")

"""The database's tables of devices, compared with plain loops over the raw events."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.vendor_files.database import write_database
from dynprof.analysis.vendor_files.tables import cell, operator_tables
from tests.real_traces import copy_name, on_each, raw_events
from tests.unit.analysis.random_traces import random_trace

if TYPE_CHECKING:
    from pathlib import Path

NONE = 4294967295
KERNELS, COPIES, MEMSETS = ("kernel",), ("gpu_memcpy", "memcpy"), ("gpu_memset", "memset")
ON_DEVICE = KERNELS + COPIES + MEMSETS
CALLS = {"cuda_runtime": "acl", "runtime": "acl", "cuda_driver": "runtime"}
Event = dict[str, Any]


def category(event: Event) -> str:
    """Return an event's category in the spelling of any version of Kineto."""
    return str(event.get("cat")).lower()


def blocks(event: Event, calls: dict[int, Event]) -> int | str:
    """Return a kernel's number of blocks, from its grid or that of its launch."""
    told = event["args"]
    call = calls.get(told.get("correlation"), {"args": {}, "name": ""})
    grid = told.get("grid") or (call["args"].get("grid") if category(event) == "kernel" else None)
    if grid is None:
        return "N/A"
    if "grid" not in told and call["name"] == "hipExtModuleLaunchKernel":
        grid = [-(-g // b) for g, b in zip(grid, call["args"]["block"], strict=True)]
    return int(grid[0] * grid[1] * grid[2])


def launches(events: list[Event]) -> dict[int, Event]:
    """Return the first call with each correlation."""
    found: dict[int, Event] = {}
    for event in events:
        if category(event) in CALLS and "correlation" in event["args"]:
            found.setdefault(event["args"]["correlation"], event)
    return found


def queried(measured: MeasuredTrace, folder: Path) -> Any:
    """Return a function that queries the trace's database."""
    path = folder / "a.db"
    write_database(measured, path)

    def query(text: str) -> list[tuple[Any, ...]]:
        try:
            with closing(sqlite3.connect(path)) as database:
                return database.execute(text).fetchall()
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)  # an empty table is not written
            return []

    return query


def check(path: Path, folder: Path) -> None:
    """Compare every table with the raw events."""
    events, measured = raw_events(path), MeasuredTrace(path)
    query = queried(measured, folder)
    work = [event for event in events if category(event) in ON_DEVICE]
    nccl = [e for e in work if category(e) == "kernel" and "nccl" in e["name"].lower()]
    computed = [e for e in work if category(e) == "kernel" and "nccl" not in e["name"].lower()]
    if not work:
        assert not query("SELECT * FROM COMPUTE_TASK_INFO")
        return
    tasks = query("SELECT count(*), sum(endNs - startNs), count(DISTINCT globalTaskId) FROM TASK")
    assert tasks[0][0] == tasks[0][2] == len(work)
    assert tasks[0][1] / 1000 == pytest.approx(sum(e["dur"] for e in work), abs=0.01)
    by_stream = Counter((e["args"]["device"], e["args"]["stream"]) for e in work)
    found = query("SELECT deviceId, streamId, count(*) FROM TASK GROUP BY deviceId, streamId")
    assert {(d, s): n for d, s, n in found} == {(d, s): n for (d, s), n in by_stream.items()}
    check_kernels(query, computed, launches(events))
    check_blocks(measured, work, launches(events))
    check_copies(query, [e for e in work if category(e) in COPIES])
    check_calls(query, events)
    sums = query(
        "SELECT count(*), sum(c.endNs - c.startNs) FROM COMMUNICATION_OP c "
        "JOIN COMMUNICATION_TASK_INFO i ON i.opId = c.opId "
        "JOIN TASK t ON t.globalTaskId = i.globalTaskId AND t.startNs = c.startNs"
    )
    assert (sums[0][0] if sums else 0) == len(nccl)
    if nccl:
        assert sums[0][1] / 1000 == pytest.approx(sum(e["dur"] for e in nccl), abs=0.01)


def check_kernels(query: Any, computed: list[Event], calls: dict[int, Event]) -> None:
    """Compare kernels by name: count, time, blocks."""
    expected: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0])
    for event in computed:
        known = blocks(event, calls)
        row = expected[event["name"]]
        row[0], row[1] = row[0] + 1, row[1] + float(event["dur"])
        row[2] += known if isinstance(known, int) else NONE
    found = query(
        "SELECT s.value, count(*), sum(t.endNs - t.startNs), sum(c.blockNum) "
        "FROM COMPUTE_TASK_INFO c JOIN TASK t ON t.globalTaskId = c.globalTaskId "
        "JOIN STRING_IDS s ON s.id = c.name GROUP BY s.value"
    )
    assert {name for name, *_ in found} == set(expected)
    for name, count, took, of in found:
        assert (count, of) == (expected[name][0], expected[name][2]), name
        assert took / 1000 == pytest.approx(expected[name][1], abs=0.01), name


def check_blocks(measured: MeasuredTrace, work: list[Event], calls: dict[int, Event]) -> None:
    """Compare the blocks in the table of kernels."""
    header, rows = operator_tables(measured)["kernel_details.csv"]
    place, name = header.index("Block Num"), header.index("Name")
    found = Counter((row[name], row[place]) for row in rows)
    assert found == Counter((cell(event["name"]), str(blocks(event, calls))) for event in work)


def check_copies(query: Any, copies: list[Event]) -> None:
    """Compare copies: bytes by direction."""
    words = {"H": "host", "D": "device"}
    expected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for event in copies:
        way = copy_name(event).split()[1]
        row = expected[f"{words[way[0]]} to {words[way[-1]]}"]
        row[0], row[1] = row[0] + 1, row[1] + event["args"].get("bytes", 0)
    found = query("SELECT e.name, count(*), coalesce(sum(m.size), 0) FROM MEMCPY_INFO m "
                  "JOIN ENUM_MEMCPY_OPERATION e ON e.id = m.memcpyOperation "
                  "JOIN TASK t ON t.globalTaskId = m.globalTaskId GROUP BY e.name")  # fmt: skip
    assert {name: [count, size] for name, count, size in found} == expected


def check_calls(query: Any, events: list[Event]) -> None:
    """Compare calls by layer and name, and the join of calls with the work they launched."""
    calls = [event for event in events if category(event) in CALLS]
    expected = Counter((CALLS[category(event)], event["name"]) for event in calls)
    found = query("SELECT e.name, s.value, count(*) FROM CANN_API a "
                  "JOIN ENUM_API_TYPE e ON e.id = a.type JOIN STRING_IDS s ON s.id = a.name "
                  "GROUP BY e.name, s.value")  # fmt: skip
    assert {(layer, name): count for layer, name, count in found} == dict(expected)
    known = {event["args"].get("correlation") for event in calls}
    started = [e for e in events
               if category(e) in ON_DEVICE and e["args"]["correlation"] in known]  # fmt: skip
    found = query("SELECT count(DISTINCT t.globalTaskId) FROM TASK t "
                  "JOIN CANN_API a ON a.connectionId = t.connectionId")  # fmt: skip
    assert (found[0][0] if found else 0) == len(started)


@on_each
def test_on_real_traces(tmp_path: Path, path: Path) -> None:
    """This covers kernels, blocks, copies, calls and communication of several vendors."""
    check(path, tmp_path)


@pytest.mark.parametrize("seed", range(8))
def test_on_random_traces(tmp_path: Path, seed: int) -> None:
    """The traces have graphs, which launch several kernels in one call."""
    check(random_trace(tmp_path, seed), tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_an_operator_is_joined_with_its_device_work(tmp_path: Path, seed: int) -> None:
    """Each operator joins once with its device work, also for graphs."""
    measured = MeasuredTrace(random_trace(tmp_path, seed))
    query = queried(measured, tmp_path)
    found = query(
        "SELECT count(*), sum(t.endNs - t.startNs) FROM PYTORCH_API a "
        "JOIN CONNECTION_IDS c ON c.id = a.connectionId "
        "JOIN TASK t ON t.connectionId = c.connectionId"
    )
    whole = int(measured.trace.spans["length"][measured.launches.work].sum())
    assert found[0][1] == whole - measured.operators.device_unknown
    assert found[0][0] <= len(measured.launches.work)


def test_grids_that_count_threads(tmp_path: Path) -> None:
    """ROCm's module launches count threads, others blocks; both are in the launch's arguments."""
    events = []
    names = ("hipExtModuleLaunchKernel", "hipLaunchKernel", "hipLaunchKernel")
    for number, name in enumerate(names):
        told: dict[str, Any] = {"correlation": number}
        grid = {"grid": [512, 8, 1], "block": [256, 3, 1]} if number < 2 else {}
        events += [
            {"ph": "X", "cat": "cuda_runtime", "name": name, "ts": number, "dur": 1,
             "args": {**told, **grid}},
            {"ph": "X", "cat": "kernel", "name": f"k{number}", "ts": number + 5, "dur": 1,
             "args": {**told, "device": 0, "stream": 1}},
        ]  # fmt: skip
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    header, rows = operator_tables(MeasuredTrace(path))["kernel_details.csv"]
    place = header.index("Block Num")
    assert [row[place] for row in rows] == ["6", "4096", "N/A"]

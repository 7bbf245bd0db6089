"""communication.json, communication_matrix.json and analysis.db, for messages with known ends."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.vendor_files.analysis_database import write_analysis_database
from dynprof.analysis.vendor_files.communication import communication, communication_matrix
from tests.real_traces import on_each, raw_events

if TYPE_CHECKING:
    from pathlib import Path

NAME = "ncclDevKernel_SendRecv"
REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def message(at: float, dur: float, collective: str, **told: Any) -> dict[str, Any]:
    """Return a kernel of 1,000,000 floats of the group "pp" on device 0."""
    args = {
        "device": 0, "stream": 7, "correlation": int(at), "Collective name": collective,
        "In msg nelems": 1_000_000, "dtype": "Float", "Process Group Name": "pp", **told,
    }  # fmt: skip
    name = REDUCE if collective == "allreduce" else NAME
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": dur,
            "args": args}  # fmt: skip


STEPS = [
    {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 1, "tid": 1,
     "ts": 1000 * number, "dur": 1000}
    for number in (0, 1)
]  # fmt: skip
EVENTS = [
    *STEPS,
    message(10, 100, "send", **{"Dst Rank": 3}),
    message(200, 50, "send", **{"Dst Rank": 3}),
    message(300, 400, "recv", **{"Src Rank": 1}),
    message(1100, 25, "send", **{"Dst Rank": 4}),
    message(1200, 60, "allreduce"),
    message(1300, 60, "send"),
]


def written(path: Path) -> MeasuredTrace:
    """Return the trace of rank 2, read."""
    path.write_text(json.dumps({"distributedInfo": {"rank": 2}, "traceEvents": EVENTS}))
    return MeasuredTrace(path)


def test_messages_by_step_and_kind(tmp_path: Path) -> None:
    """Each operation is listed by step, kind and group, with each kind's sum."""
    found = communication(written(tmp_path / "a.trace.json"))
    assert list(found) == ["step0", "step1"]
    assert set(found["step0"]["p2p"]) == {f"{NAME}__{n}@pp" for n in (1, 2, 3)} | {"Total Op Info"}
    times = found["step0"]["p2p"][f"{NAME}__3@pp"]["Communication Time Info"]
    assert times == {"Start Timestamp(us)": 300.0, "Elapse Time(ms)": 0.4}
    total = found["step0"]["p2p"]["Total Op Info"]["Communication Time Info"]
    assert total["Elapse Time(ms)"] == pytest.approx(0.55)
    assert found["step0"]["collective"] == {}
    assert set(found["step1"]["collective"]) == {f"{REDUCE}__1@pp", "Total Op Info"}


def test_the_matrix_has_each_link(tmp_path: Path) -> None:
    """Each link of this rank is listed with size and speed."""
    found = communication_matrix(written(tmp_path / "a.trace.json"))
    sent = found["step0"]["p2p"]
    fast = {"Transport Type": "N/A", "Transit Size(MB)": 4.0, "Transit Time(ms)": 0.05,
            "Bandwidth(GB/s)": 80.0, "Op Name": f"{NAME}__2"}  # fmt: skip
    assert sent["send-top1@pp"] == {"2-3": fast}
    assert sent["send-bottom1@pp"]["2-3"]["Bandwidth(GB/s)"] == 40.0
    total = sent["send-total@pp"]["2-3"]
    assert total["Transit Size(MB)"] == 8.0
    assert total["Bandwidth(GB/s)"] == pytest.approx(8 / 0.15, abs=1e-4)
    assert "send-bottom3@pp" not in sent
    assert sent["receive-total@pp"]["1-2"]["Transit Time(ms)"] == 0.4
    assert {link for links in found["step1"]["p2p"].values() for link in links} == {"2-4"}
    assert found["step1"]["collective"] == {}


def test_the_analysis_database_has_the_same_values(tmp_path: Path) -> None:
    """``analysis.db`` has steps, operations and links; unknown values are null."""
    write_analysis_database(written(tmp_path / "a.trace.json"), tmp_path / "analysis.db")
    with closing(sqlite3.connect(tmp_path / "analysis.db")) as database:
        steps = database.execute("SELECT deviceId, step, communication, bubble, stage, "
                                 "communication_not_overlapped_and_exclude_receive "
                                 "FROM StepTraceTime").fetchall()  # fmt: skip
        times = database.execute(
            "SELECT hccl_op_name, elapse_time, wait_time, step, type "
            "FROM CommAnalyzerTime WHERE group_name = 'pp'"
        ).fetchall()
        links = database.execute(
            "SELECT src_rank, dst_rank, transit_size FROM CommAnalyzerMatrix "
            "WHERE hccl_op_name LIKE '%-total' ORDER BY 1, 2"
        ).fetchall()
    assert steps == [(0, "0", 550, 400, 290, 150), (0, "1", 145, 0, 260, 145)]
    assert len(times) == 6
    assert times[2] == (f"{NAME}__3", 0.4, None, "step0", "p2p")
    assert links == [("1", "2", 4), ("2", "3", 8), ("2", "4", 4)]


@on_each
def test_on_real_traces(path: Path) -> None:
    """All-to-all is not point-to-point, whatever its kernel's name; sums are exact."""
    found = communication(MeasuredTrace(path))
    events = raw_events(path)
    kernels = [event for event in events if str(event.get("cat")).lower() == "kernel"]
    sent = [event for event in kernels if "nccl" in event["name"]]
    sent += [e for e in events if e.get("cat") == "user_annotation" and "gloo:" in e["name"]]
    sums: dict[str, float] = {"p2p": 0.0, "collective": 0.0, "unknown": 0.0}
    for step in found.values():
        for kind, operations in step.items():
            total = operations.get("Total Op Info", {}).get("Communication Time Info", {})
            sums[kind] += total.get("Elapse Time(ms)", 0.0)
    if kernels:
        assert sums["p2p"] == 0
        whole = sum(float(event["dur"]) for event in sent) / 1000
        assert sums["collective"] + sums["unknown"] == pytest.approx(whole, abs=1e-4)

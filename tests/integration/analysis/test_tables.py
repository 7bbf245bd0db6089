"""Tables of real captures: numbers equal torch's, names the vendor's."""

from __future__ import annotations

import ast
import json
import os
import sqlite3
from pathlib import Path

import duckdb
import numpy as np
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.reading.events import ON_DEVICE, OPERATORS
from dynprof.analysis.runs.one_trace import write_analysis
from dynprof.analysis.vendor_files import tables
from dynprof.analysis.vendor_files.database import API_TYPES, TABLES
from dynprof.analysis.vendor_files.stacks import folded
from tests.integration.analysis.traces import recorded, rows
from tests.real_traces import REAL, needs_real, on_each

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.usefixtures("own_place")

VENDOR = Path(os.environ.get("TORCH_NPU_WHEELS", "/none")) / "2.14.0" / "torch_npu" / "profiler"
STEPS = [1, 2, 3]


@pytest.mark.parametrize(
    "settings", [{"record_shapes": True, "profile_memory": True}, {"with_stack": True}]
)
def test_operators_are_those_of_torchs_key_averages(
    tmp_path: Path, settings: dict[str, bool]
) -> None:
    """Count, self and total time of every name match; torch counts stack frames as operators."""
    path = tmp_path / "a.pt.trace.json"
    torchs = {row.key: row for row in recorded(path, **settings).key_averages()}
    capture = MeasuredTrace(path)
    ours = {row.name: row for row in capture.averages}
    stacks = settings.get("with_stack")
    assert set(ours) <= set(torchs) if stacks else set(ours) == set(torchs)
    for name, row in ours.items():
        assert row.count == torchs[name].count, name
        assert row.total_ns / 1000 == pytest.approx(torchs[name].cpu_time_total, abs=0.01), name
        if not stacks or name.startswith("aten::"):
            expected = torchs[name].self_cpu_time_total
            assert row.self_ns / 1000 == pytest.approx(expected, abs=0.01), name


def test_tables_have_all_rows_of_the_trace(tmp_path: Path) -> None:
    """The tables have a row for each operator with shapes and stack, each step and allocation."""
    path = tmp_path / "a.pt.trace.json.gz"
    recorded(path, record_shapes=True, profile_memory=True, with_stack=True)
    made = {found.name: found for found in write_analysis(MeasuredTrace(path), ["text"])}
    capture = MeasuredTrace(path)
    details = rows(made["operator_details.csv"])
    products = [row for row in details if row["Name"] == "aten::addmm"]
    assert products[0]["Input Shapes"].startswith("32;32,32;32,32;")
    frames = products[0]["Call Stack"].split(";\r\n")
    assert "linear" in frames[0]
    assert frames[-1].endswith(("<module>", "_run_code", "wrapper", "main")) or len(frames) > 5
    self_us = sum(float(row["Host Self Duration(us)"]) for row in details)
    steps = float(sum(row.self_ns for row in capture.averages
                      if row.name == "ProfilerStep*")) / 1000  # fmt: skip
    assert self_us + steps == pytest.approx(sum(capture.operators.self_ns) / 1000, abs=0.01)
    times = rows(made["step_trace_time.csv"])
    assert [int(row["Step"]) for row in times] == STEPS
    for row in times:
        assert 0 < float(row["Computing"]) <= float(row["Stage"])
        assert row["Communication"] == "0.000"
    statistic = rows(made["op_statistic.csv"])
    assert sum(float(row["Ratio(%)"]) for row in statistic) == pytest.approx(100, abs=0.5)
    memory = rows(made["operator_memory.csv"])
    assert any(row["Name"] == "aten::empty" and row["Release Time(us)"] for row in memory)
    released = [row for row in memory if row["Release Time(us)"]]
    assert all(float(row["Duration(us)"]) >= 0 for row in released)
    assert "kernel_details.csv" not in made
    json.loads(made["trace_view.json"].read_text())


def test_the_database_is_joined_as_a_user_would(tmp_path: Path) -> None:
    """Names, shapes, call chains and steps join through their ids."""
    path = tmp_path / "a.pt.trace.json"
    prof = recorded(path, record_shapes=True, profile_memory=True, with_stack=True)
    (made,) = [
        found
        for found in write_analysis(MeasuredTrace(path), ["db"])
        if found.name.startswith("ascend")
    ]
    with sqlite3.connect(made) as database:
        found = database.execute(
            "SELECT n.value, count(*), sum(CAST(endNs AS INTEGER) - CAST(startNs AS INTEGER)) "
            "FROM PYTORCH_API a JOIN STRING_IDS n ON n.id = a.name "
            "JOIN ENUM_API_TYPE t ON t.id = a.type WHERE t.name = 'op' GROUP BY n.value"
        ).fetchall()
        shapes = database.execute(
            "SELECT s.value FROM PYTORCH_API a JOIN STRING_IDS n ON n.id = a.name "
            "JOIN STRING_IDS s ON s.id = a.inputShapes WHERE n.value = 'aten::addmm'"
        ).fetchone()
        frame = database.execute(
            "SELECT f.value FROM PYTORCH_API a JOIN STRING_IDS n ON n.id = a.name "
            "JOIN PYTORCH_CALLCHAINS c ON c.id = a.callchainId AND c.stackDepth = 0 "
            "JOIN STRING_IDS f ON f.id = c.stack WHERE n.value = 'aten::addmm'"
        ).fetchone()
        steps = database.execute("SELECT id, endNs - startNs FROM STEP_TIME").fetchall()
        memory = database.execute("SELECT max(totalAllocated) FROM MEMORY_RECORD").fetchone()
    database.close()
    torchs = {row.key: row for row in prof.key_averages()}
    by_name = {name: (count, took) for name, count, took in found}
    count, took = by_name["aten::addmm"]
    assert count == torchs["aten::addmm"].count
    assert took / 1000 == pytest.approx(torchs["aten::addmm"].cpu_time_total, abs=0.01)
    assert shapes[0].startswith("32;32,32;32,32;")
    assert "linear" in frame[0]
    assert [number for number, _ in steps] == STEPS
    assert memory[0] > 0


def test_events_are_read_back_from_parquet(tmp_path: Path) -> None:
    """Any reader of Parquet gets every span, with names and whole ns since the epoch."""
    path = tmp_path / "a.pt.trace.json"
    prof = recorded(path)
    (made,) = [
        found for found in write_analysis(MeasuredTrace(path), []) if found.name == "events.parquet"
    ]
    found = duckdb.execute(
        "SELECT name, count(*), sum(duration_ns), min(start_ns) "
        f"FROM '{made}' WHERE category = 'cpu_op' GROUP BY name"
    ).fetchall()
    torchs = {row.key: row for row in prof.key_averages()}
    assert "aten::addmm" in {name for name, *_ in found}
    for name, count, took, began in found:
        if name == "aten::addmm":
            assert count == torchs[name].count
            assert took / 1000 == pytest.approx(torchs[name].cpu_time_total, abs=0.01)
        assert began > 1_700_000_000 * 10**9


def test_folded_stacks_add_up(tmp_path: Path) -> None:
    """The sum of folded stacks is the threads' time in the steps."""
    path = tmp_path / "a.pt.trace.json"
    recorded(path, with_stack=True)
    capture = MeasuredTrace(path)
    lines = list(folded(capture))
    outer = capture.calls.span[capture.calls.parent == -1]
    thread = capture.trace.spans["thread"]
    outer = outer[np.isin(thread[outer], thread[capture.trace.category(OPERATORS)])]
    begins = capture.trace.spans["start"][outer]
    ends = begins + capture.trace.spans["length"][outer]
    first, last = capture.marked[0], capture.marked[-1]
    inside = np.minimum(ends, last[1] + last[2]) - np.maximum(begins, first[1])
    total = np.maximum(inside, 0).sum()
    lost_us = total / 1000 - sum(us for _, us in lines)  # each line is rounded to whole us
    assert 0 <= lost_us <= len(lines)
    outside = {"ph": "X", "cat": "python_function", "name": "stray", "pid": 1, "tid": 1}
    trace = json.loads(path.read_text())
    late = max(event["ts"] for event in trace["traceEvents"] if "ts" in event)
    trace["traceEvents"].append({**outside, "ts": late + 1e6, "dur": 1e9})
    stray = tmp_path / "b.pt.trace.json"
    stray.write_text(json.dumps(trace))
    assert list(folded(MeasuredTrace(stray))) == lines
    assert any(stack.endswith("aten::linear;aten::addmm") for stack, _ in lines)
    assert len({stack for stack, _ in lines}) == len(lines)
    (flame,) = [
        made
        for made in write_analysis(MeasuredTrace(path), [])
        if made.name.endswith("speedscope.json")
    ]
    shown = json.loads(flame.read_text())
    names = [frame["name"] for frame in shown["shared"]["frames"]]
    (sampled,) = shown["profiles"]
    rebuilt = [";".join(names[frame] for frame in sample) for sample in sampled["samples"]]
    assert list(zip(rebuilt, sampled["weights"], strict=True)) == lines
    assert sampled["endValue"] == sum(us for _, us in lines)


@on_each
def test_real_device_traces(tmp_path: Path, path: Path) -> None:
    """Every real trace gives tables whose times add up."""
    copy = tmp_path / path.name.replace(".json", ".trace.json")
    copy.write_bytes(path.read_bytes())
    made = {found.name: found for found in write_analysis(MeasuredTrace(copy), ["text", "db"])}
    capture = MeasuredTrace(copy)
    kernels = capture.trace.category(ON_DEVICE)
    if kernels.any():
        total = sum(float(row["Total Time(us)"]) for row in rows(made["op_statistic.csv"]))
        assert total == pytest.approx(capture.trace.spans["length"][kernels].sum() / 1000)
        assert len(rows(made["kernel_details.csv"])) == kernels.sum()
    for step in capture.steps:
        assert 0 <= step.overlapped <= min(step.computing, step.communication)
        busy = step.computing + step.communication - step.overlapped
        assert busy + step.free == step.stage


@needs_real
def test_collectives_of_a_real_trace() -> None:
    """NCCL kernels are communication, and part of it is hidden behind computing."""
    capture = MeasuredTrace(REAL / "nccl_data.json.gz")
    steps = capture.steps
    assert [step.number for step in steps] == [4, 5, 6]
    assert all(0 < step.overlapped < step.communication for step in steps)


@pytest.mark.skipif(not VENDOR.is_dir(), reason="the wheels of torch_npu are fetched by make npu")
def test_headers_are_the_vendors() -> None:
    """Headers and columns are those of the real wheel, in its order."""
    views = (
        "".join(path.read_text() for path in (VENDOR / "analysis" / "prof_view").rglob("*.py"))
        + (VENDOR / "analysis" / "prof_common_func" / "_csv_headers.py").read_text()
    )
    lists = [
        tuple(ast.literal_eval(node))
        for tree in [ast.parse(text) for text in _modules()]
        for node in ast.walk(tree)
        if isinstance(node, ast.List) and node.elts and all(_is_text(e) for e in node.elts)
    ]
    for header in (tables.OPERATOR_DETAILS, tables.STEP_TRACE_TIME, tables.MEMORY_RECORD,
                   tables.OPERATOR_MEMORY):  # fmt: skip
        assert header in lists
    for column in tables.KERNEL_DETAILS:
        assert f'"{column}"' in views
    columns = (VENDOR / "analysis" / "prof_common_func" / "_constant.py").read_text()
    for name, described in TABLES.items():
        assert f'"{name}"' in columns
        for column, _ in described:
            assert f'("{column}", ' in columns or name == "ENUM_API_TYPE"
    assert all(str(number) in columns for number in API_TYPES)


def _modules() -> list[str]:
    return [path.read_text() for path in (VENDOR / "analysis" / "prof_view").rglob("*.py")]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)

"""The databases, compared with the real wheel: its columns, and its queries on a real trace."""

from __future__ import annotations

import ast
import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.vendor_files.analysis_database import ANALYSIS_TABLES, write_analysis_database
from dynprof.analysis.vendor_files.database import DEVICE_TABLES, TABLES, write_database
from dynprof.analysis.vendor_files.tables import LEVELLED
from tests.real_traces import on_each, raw_events

WHEELS = sorted(Path(os.environ.get("TORCH_NPU_WHEELS", "/none")).glob("*/torch_npu/profiler"))
NEWEST = [wheel for wheel in WHEELS if wheel.parts[-3] == "2.14.0"]
needs_wheels = pytest.mark.skipif(
    not NEWEST, reason="the wheels of torch_npu are fetched by make npu"
)
pytestmark = needs_wheels


def module(name: str) -> ast.Module:
    """Return the source of a module of the newest wheel."""
    (path,) = NEWEST[0].rglob(name)
    return ast.parse(path.read_text())


def columns() -> dict[str, list[tuple[str, str]]]:
    """Return the columns and types of the wheel's tables."""
    names: dict[str, Any] = {}
    found: dict[str, list[tuple[str, str]]] = {}
    for node in ast.walk(module("_constant.py")):
        if isinstance(node, ast.ClassDef) and node.name in ("DbConstant", "Constant"):
            for line in node.body:
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant):
                    names[line.targets[0].id] = line.value.value  # type: ignore[attr-defined]
    for node in ast.walk(module("_constant.py")):
        if isinstance(node, ast.Dict) and node.keys and isinstance(node.values[0], ast.List):
            for key, value in zip(node.keys, node.values, strict=True):
                table = names[key.attr]  # type: ignore[union-attr]
                found[table] = [
                    (one.elts[0].value, names[one.elts[1].attr])
                    for one in value.elts  # type: ignore[attr-defined]
                ]
    return found


def test_columns_are_the_vendors() -> None:
    """Names, order and types match for each table that the wheel describes."""
    vendors = columns()
    ours = {**TABLES, **DEVICE_TABLES, **ANALYSIS_TABLES}
    compared = set(vendors) & set(ours)
    assert {"CANN_API", "PYTORCH_API", "StepTraceTime", "CommAnalyzerMatrix"} <= compared
    for table in compared:
        assert [*ours[table]] == vendors[table], table
    assert set(ANALYSIS_TABLES) <= set(vendors)
    text = "".join(path.read_text() for path in NEWEST[0].rglob("_constant.py"))
    for table in ("TASK", "COMPUTE_TASK_INFO", "COMMUNICATION_OP", "COMMUNICATION_TASK_INFO",
                  "MSTX_EVENTS"):  # fmt: skip
        assert f'"{table}"' in text
        assert table in DEVICE_TABLES


def test_files_are_named_as_the_vendors() -> None:
    """The wheel has the names that a level omits, and those for which a trace has no data."""
    text = "".join(path.read_text() for path in NEWEST[0].rglob("*.py"))
    for name in [*LEVELLED, "data_preprocess.csv", "l2_cache.csv", "profiler_metadata.json"]:
        assert f'"{name}"' in text, name


def queries() -> list[str]:
    """Return the wheel's queries that divide a step."""
    found = [
        node.value
        for node in ast.walk(module("_trace_step_time_db_parser.py"))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        and re.search(r"\bFROM (COMPUTE_TASK_INFO|comm_info)\b", node.value)
    ]  # fmt: skip
    assert len(found) == 2
    return found


@on_each
def test_the_vendors_own_queries_find_our_times(tmp_path: Path, path: Path) -> None:
    """The wheel's results for a step from TASK and COMMUNICATION_OP equal StepTraceTime."""
    measured = MeasuredTrace(path)
    write_database(measured, tmp_path / "a.db")
    write_analysis_database(measured, tmp_path / "analysis.db")
    rows: list[list[Any]] = []
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        for query in queries():
            needed = set(re.findall(r"\b[A-Z]+_[A-Z_]+\b|\bTASK\b", query))
            there = needed <= tables
            rows.append(database.execute(query).fetchall() if there else [])
    with closing(sqlite3.connect(tmp_path / "analysis.db")) as database:
        steps = database.execute(
            "SELECT deviceId, sum(computing), sum(communication) FROM StepTraceTime GROUP BY 1"
        ).fetchall()
    kernels = [e for e in raw_events(path) if str(e.get("cat")).lower() == "kernel"]
    nccl = [event for event in kernels if "nccl" in event["name"]]
    on_device = [[row for row in found if row[3] is not None and row[3] >= 0] for found in rows]
    for found, raw in zip(on_device, ([e for e in kernels if e not in nccl], nccl), strict=True):
        assert len(found) == len(raw)
        took = sum(end - begin for _, begin, end, _ in found) / 1000
        assert took == pytest.approx(sum(event["dur"] for event in raw), abs=0.01)
    if len(measured.marked) > 1 or not kernels or path.name.startswith("qwen"):
        return  # a kernel's step is that of its launch; qwen's began before
    for device, computing, communication in steps:
        for ours, found in zip((computing, communication), rows, strict=True):
            spans = sorted((begin, end) for _, begin, end, on in found if on == device)
            assert ours * 1000 == pytest.approx(union(spans))


def union(spans: list[tuple[int, int]]) -> int:
    """Return the time during which at least one of them runs."""
    total, last = 0, 0
    for begin, end in spans:
        total += max(0, end - max(begin, last))
        last = max(last, end)
    return total

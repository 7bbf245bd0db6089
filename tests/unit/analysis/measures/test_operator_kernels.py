"""Kernels by operator and shapes, and by category, as plain loops over raw events count them."""

from __future__ import annotations

import csv
import json
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.timeline.kernels import category_of, category_times
from dynprof.analysis.report.sections import categories_section
from dynprof.analysis.vendor_files.tables import own_tables, shapes_text, write_tables
from tests.real_traces import everything, on_each
from tests.unit.analysis.plain_launchers import ANY, Event, launchers
from tests.unit.analysis.random_traces import random_trace

if TYPE_CHECKING:
    from pathlib import Path


def times_by_operator(events: list[Event]) -> dict[tuple[str, str, str], list[int]]:
    """Return the durations in ns by operator, shapes and kernel, of what has an operator."""
    found = defaultdict[tuple[str, str, str], list[int]](list)
    for work, by in launchers(events):
        if by is not None:
            name = "ProfilerStep*" if by["name"].startswith("ProfilerStep#") else by["name"]
            name = "iteration*" if name.startswith(("execute_", "step[")) else name
            args = by.get("args", {})
            shapes = args.get("Input Dims", args.get("Input dims", []))
            text = ANY if shapes == ANY else shapes_text(json.dumps(shapes).encode())
            key = (name, text, work["name"])
            found[key].append(work["end"] - work["begin"])
    return found


def check(path: Path) -> None:
    """Compare count, sum, extremes and standard deviation."""
    measured = MeasuredTrace(path)
    assert sum(row.total for row in measured.operator_kernels) == sum(
        row.total for row in measured.categories
    )
    expected = times_by_operator(everything(path))
    unclear = {(name, kernel) for name, shapes, kernel in expected if shapes == ANY}
    for name, shapes, kernel in list(expected):
        if (name, kernel) in unclear and shapes != ANY:
            expected[name, ANY, kernel] += expected.pop((name, shapes, kernel))
    found = defaultdict[tuple[str, str, str], list[Any]](list)
    for row in measured.operator_kernels:
        shapes = ANY if (row.operator, row.kernel) in unclear else shapes_text(row.dims)
        found[row.operator, shapes, row.kernel].append(row)
    for key, times in expected.items():
        rows = found[key]
        assert sum(row.count for row in rows) == len(times), key
        assert sum(row.total for row in rows) == sum(times), key
        if len(rows) == 1:  # the types of the inputs are the same
            (row,) = rows
            assert (row.shortest, row.longest) == (min(times), max(times)), key
            assert row.deviation == pytest.approx(statistics.pstdev(times), abs=0.01), key


@pytest.mark.parametrize("seed", range(6))
def test_kernels_of_operators_in_random_traces(tmp_path: Path, seed: int) -> None:
    """Each activity counts for the innermost operator open at its launch."""
    check(random_trace(tmp_path, seed))


@on_each
def test_kernels_of_operators_in_real_traces(path: Path) -> None:
    """Of several versions of torch and makers of devices."""
    check(path)


def test_tables_of_categories_and_kernels(tmp_path: Path) -> None:
    """Shares add up to the device time, and a kernel has the stack that launched most of it."""
    host = {"ph": "X", "pid": 1, "tid": 1}
    events: list[Event] = []
    for number, (operator, kernel, lasts) in enumerate(
        [("aten::mm", "sgemm", 40), ("aten::mm", "sgemm", 20), ("aten::sum", "reduce", 20)]
    ):
        at = 100 * number
        events += [
            {**host, "cat": "python_function", "name": f"train.py({number}): f", "ts": at,
             "dur": 60, "args": {}},
            {**host, "cat": "cpu_op", "name": operator, "ts": at + 5, "dur": 40,
             "args": {"Input Dims": [[2, 3]], "Input type": ["float"]}},
            {**host, "cat": "cuda_runtime", "name": "launch", "ts": at + 10, "dur": 5,
             "args": {"correlation": number}},
            {"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": at + 30,
             "dur": lasts, "args": {"device": 0, "stream": 7, "correlation": number}},
        ]  # fmt: skip
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    measured = MeasuredTrace(path)
    first = np.zeros(len(measured.trace.spans["start"]), bool)
    first[measured.launches.work[0]] = True
    (row,) = category_times(measured.trace, measured.launches, measured.category_codes, first)
    assert (row.category, row.count, row.total) == ("GEMM", 1, 40_000)
    list(write_tables(own_tables(measured), tmp_path))
    assert categories_section(measured) == {
        "rows": [["GEMM", 0, 2, 0.06, 75.0], ["reduction", 0, 1, 0.02, 25.0]],
        "durations": [["10 to 100 us", 3, 0.08]],
    }
    with (tmp_path / "kernel_categories.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["Category"], row["Count"], row["Ratio(%)"]) for row in csv.DictReader(file)]
    assert rows == [("GEMM", "2", "75.000"), ("reduction", "1", "25.000")]
    with (tmp_path / "operator_kernels.csv").open(encoding="utf-8", newline="") as file:
        longest, _ = csv.DictReader(file)
    assert longest == {
        "Operator": "aten::mm", "Input Shapes": "2,3", "Input Types": "float", "Kernel": "sgemm",
        "Category": "GEMM", "Count": "2", "Total Time(us)": "60.000", "Avg Time(us)": "30.000",
        "Min Time(us)": "20.000", "Max Time(us)": "40.000", "Standard Deviation(us)": "10.000",
        "Call Stack": "train.py(0): f",
    }  # fmt: skip


@on_each
def test_categories_of_real_traces(path: Path) -> None:
    """Each kernel has the category of its name and operator; copies and memsets have their own."""
    measured = MeasuredTrace(path)
    expected = defaultdict[str, int](int)
    for work, by in launchers(everything(path)):
        if work["kind"] == "kernel":
            category = category_of(work["name"], by["name"] if by else "")
        else:
            category = "copy" if "memcpy" in work["kind"] else "memset"
        expected[category] += work["end"] - work["begin"]
    found = defaultdict[str, int](int)
    for row in measured.categories:
        found[row.category] += row.total
    assert found == expected

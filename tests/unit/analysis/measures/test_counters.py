"""CUPTI's counters by operator, as plain loops over the raw events count them."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.vendor_files.tables import own_tables, write_tables
from tests.real_traces import REAL, needs_real, raw_events

if TYPE_CHECKING:
    from pathlib import Path

SUM, SHARE = "smsp__inst_executed.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed"
HOST = {"ph": "X", "pid": 1, "tid": 1}


def launches(operators: list[str]) -> list[dict[str, Any]]:
    """Return operators, each with the launch of one kernel."""
    events: list[dict[str, Any]] = []
    for number, name in enumerate(operators):
        at = 100 * number
        events += [
            {**HOST, "cat": "cpu_op", "name": name, "ts": at, "dur": 50,
             "args": {"Input Dims": [[2, 3]]}},
            {**HOST, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 5, "dur": 5,
             "args": {"correlation": number}},
        ]  # fmt: skip
    return events


def counted(values: list[tuple[int, float]]) -> list[dict[str, Any]]:
    """Return the counters of kernels in their order, at times of no meaning; the last one first."""
    return [
        {"ph": "X", "cat": "cuda_profiler_range", "name": f"kernel{total}", "pid": 0, "tid": 0,
         "ts": 1000 + number, "dur": 1, "args": {SUM: total, SHARE: share}}
        for number, (total, share) in reversed(list(enumerate(values)))
    ]  # fmt: skip


def table(folder: Path, events: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the table of a trace."""
    path = folder / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    list(write_tables(own_tables(MeasuredTrace(path)), folder))
    with (folder / "operator_counters.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_counters_belong_to_the_operator_of_the_launch(tmp_path: Path) -> None:
    """The n-th range is that of the n-th launch; sums add up, and shares have a mean."""
    events = launches(["aten::mm", "aten::add", "aten::mm"]) + counted([(7, 20), (5, 1), (7, 60)])
    assert table(tmp_path, events) == [
        {"Operator": "aten::mm", "Input Shapes": "2,3", "Kernel": "kernel7", "Count": "2",
         SUM: "14", SHARE: "40.0"},
        {"Operator": "aten::add", "Input Shapes": "2,3", "Kernel": "kernel5", "Count": "1",
         SUM: "5", SHARE: "1.0"},
    ]  # fmt: skip


def test_operator_is_unknown_where_launches_are_missing(tmp_path: Path) -> None:
    """With fewer launches than kernels no order tells which is which."""
    (row,) = table(tmp_path, launches(["aten::mm"]) + counted([(7, 20), (7, 40)]))
    assert (row["Operator"], row["Count"], row[SUM]) == ("(launch not recorded)", "2", "14")


@needs_real
def test_counters_of_a_real_trace() -> None:
    """77 kernels of a network on an A100, one of which CUPTI has no name for."""
    path = REAL / "cupti_counters.json.gz"
    events = raw_events(path)
    ranges = sorted((e for e in events if e["cat"] == "cuda_profiler_range"), key=lambda e: e["ts"])
    calls = sorted((e for e in events if e["name"] == "cudaLaunchKernel"), key=lambda e: e["ts"])
    expected = defaultdict[tuple[str, str], list[float]](lambda: [0, 0])
    name = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
    for call, one in zip(calls, ranges, strict=True):
        around = [e for e in events if e["cat"] in ("cpu_op", "user_annotation")
                  and (e["pid"], e["tid"]) == (call["pid"], call["tid"])
                  and e["ts"] <= call["ts"] < e["ts"] + e["dur"]]  # fmt: skip
        operator = max(around, key=lambda e: (e["ts"], -e["dur"]))["name"]
        row = expected[operator, one["name"]]
        row[0], row[1] = row[0] + 1, row[1] + one["args"][name]
    found = defaultdict[tuple[str, str], list[float]](lambda: [0, 0])
    for counters in MeasuredTrace(path).operator_counters:
        row = found[counters.operator, counters.kernel]
        row[0], row[1] = row[0] + counters.count, row[1] + counters.values[name]
    assert found == expected

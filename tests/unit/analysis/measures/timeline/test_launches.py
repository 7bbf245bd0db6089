"""Device time belongs to its launcher; compared with plain loops over the raw events."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.contents import contents
from dynprof.analysis.vendor_files.tables import operator_tables
from tests.real_traces import on_each, raw_events
from tests.unit.analysis.random_traces import random_trace

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
HOST = ("cpu_op", "operator", "user_annotation")
LEFT_OUT = ("profiler::_record_function", "aten::is_leaf", "aten::output_nr", "aten::_version")
UNKNOWN = None

Event = dict[str, Any]


def end(event: Event) -> float:
    """Return when an event ends, in us."""
    return float(event["ts"]) + float(event["dur"])


def innermost(calls: Iterable[Event], operators: dict[Any, list[Event]]) -> dict[int, Event | None]:
    """Return the innermost open operator on its thread at the start of each call."""
    found: dict[int, Event | None] = {}
    ahead = {
        thread: sorted(mine, key=lambda o: (float(o["ts"]), -float(o["dur"])))[::-1]
        for thread, mine in operators.items()
    }
    open_ = defaultdict[Any, list[Event]](list)
    for call in sorted(calls, key=lambda call: float(call["ts"])):
        thread, when = (call["pid"], call["tid"]), float(call["ts"])
        coming, mine = ahead.get(thread, []), open_[thread]
        while coming and float(coming[-1]["ts"]) <= when:
            mine.append(coming.pop())
        mine[:] = [operator for operator in mine if end(operator) > when]
        found[id(call)] = mine[-1] if mine else None
    return found


def device_time_by_operator(events: list[Event]) -> dict[str | None, float]:
    """Return device time in us by the innermost operator that was open at the launch."""
    category = {id(event): str(event.get("cat")).lower() for event in events}
    calls = {e["args"]["correlation"]: e for e in events
             if category[id(e)] in ("cuda_runtime", "cuda_driver", "runtime")
             and "correlation" in e["args"]}  # fmt: skip
    operators = defaultdict(list)
    by_id = {}
    for event in events:
        if category[id(event)] in HOST and not event["name"].startswith(LEFT_OUT):
            operators[event["pid"], event["tid"]].append(event)
            by_id[event.get("args", {}).get("External id", 0)] = event
    around = innermost(calls.values(), operators)
    found: dict[str | None, float] = defaultdict(float)
    for work in events:
        if category[id(work)] not in ON_DEVICE:
            continue
        correlation = work["args"]["correlation"]
        external = work["args"].get("External id", 0)
        if call := calls.get(correlation):
            by = around.get(id(call))
        else:
            by = by_id.get(external) if external not in (0, correlation) else None
            by = by if by and float(by["ts"]) <= float(work["ts"]) else None
        found[by["name"] if by else UNKNOWN] += float(work["dur"])
    return found


def ours(measured: MeasuredTrace) -> dict[str | None, float]:
    """Return dynprof's device time by operator."""
    found = measured.operators
    times: dict[str | None, float] = defaultdict(float)
    for span, self_ns in zip(found.span.tolist(), found.device_self_ns.tolist(), strict=True):
        times[measured.trace.name(span)] += self_ns / 1000
    times[UNKNOWN] = found.device_unknown / 1000
    return times


def check(path: Path) -> MeasuredTrace:
    """Compare a trace's device time by operator with a plain count; the sums are equal."""
    events = raw_events(path)
    measured = MeasuredTrace(path)
    expected, found = device_time_by_operator(events), ours(measured)
    for name in {*expected, *found}:
        assert found[name] == pytest.approx(expected[name], abs=0.01), name
    whole = sum(float(e["dur"]) for e in events if str(e.get("cat")).lower() in ON_DEVICE)
    assert sum(found.values()) == pytest.approx(whole, abs=0.01)
    return measured


@on_each
def test_on_real_traces(path: Path) -> None:
    """This covers several versions of torch, vendors, and kinds of External ids."""
    check(path)


@pytest.mark.parametrize("seed", range(8))
def test_launches_on_random_traces(tmp_path: Path, seed: int) -> None:
    """In random traces work belongs to the operator that launched it."""
    measured = check(random_trace(tmp_path, seed))
    tree = measured.tree_on_device
    found = measured.operators
    named = {measured.trace.tables["name"][name] for name in tree.name}
    assert all(name.startswith("aten::") for name in named)
    by_operators = sum(
        self_ns
        for span, self_ns in zip(found.span.tolist(), found.device_self_ns.tolist(), strict=True)
        if measured.trace.name(span).startswith("aten::")
    )
    assert sum(tree.self_ns) == by_operators


def test_an_external_id_that_is_a_correlation_names_no_operator(tmp_path: Path) -> None:
    """A launch's number is another operator's id: that operator does not get the time."""
    events = [
        {"name": "aten::mine", "cat": "cpu_op", "ts": 0, "dur": 9, "args": {"External id": 1}},
        {"name": "aten::other", "cat": "cpu_op", "ts": 20, "dur": 9, "args": {"External id": 77}},
        {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": 2, "dur": 1,
         "args": {"correlation": 77, "External id": 77}},
        {"name": "kernel", "cat": "kernel", "tid": 7, "ts": 30, "dur": 5,
         "args": {"correlation": 77, "External id": 77, "device": 0, "stream": 7}},
    ]  # fmt: skip
    path = tmp_path / "a.trace.json"
    whole = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    assert ours(MeasuredTrace(path)) == {"aten::mine": 5.0, "aten::other": 0.0, UNKNOWN: 0.0}
    whole.pop(2)
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    unknown = MeasuredTrace(path)
    assert ours(unknown) == {"aten::mine": 0.0, "aten::other": 0.0, UNKNOWN: 5.0}
    header, rows = operator_tables(unknown)["operator_details.csv"]
    device = slice(header.index("Device Self Duration(us)"), None)
    assert {cell for row in rows for cell in row[device]} == {"N/A"}
    assert any("5e-03 ms" in said or "0.005 ms" in said for said in contents(unknown)["warnings"])


@pytest.mark.parametrize("number", ["correlation", "External id"])
def test_a_correlation_of_two_processes_has_no_launcher(tmp_path: Path, number: str) -> None:
    """Each counts its launches from 1: work with such a number has no launcher."""
    events = []
    for pid, other in ((1, 8), (2, 9)):
        about = {"ph": "X", "pid": pid, "tid": pid}
        for ident, ts in ((5, 0), (other, 100)):
            ts += 10 * pid
            told = {"args": {number: ident}}
            events.append({**about, "name": f"op {ident} of {pid}", "cat": "cpu_op", "ts": ts,
                           "dur": 5, **told})  # fmt: skip
            if number == "correlation":
                events.append({**about, "name": "launch", "cat": "cuda_runtime", "ts": ts + 1,
                               "dur": 1, **told})  # fmt: skip
            events.append({"ph": "X", "pid": pid, "tid": 7, "name": "k", "cat": "kernel",
                           "ts": ts + 9, "dur": 3,
                           "args": {"device": pid, "stream": 7, number: ident}})  # fmt: skip
    path = tmp_path / "a.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    measured = MeasuredTrace(path)
    spent = {row.name: row.device_self_ns for row in measured.averages if row.device_self_ns}
    assert spent == {"op 8 of 1": 3000, "op 9 of 2": 3000}
    assert measured.operators.device_unknown == 6000

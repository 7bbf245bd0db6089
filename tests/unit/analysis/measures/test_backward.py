"""Backward passes by forward operator, compared with plain loops over the raw events."""

from __future__ import annotations

import bisect
import csv
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.modules import forward_operators
from dynprof.analysis.report.contents import contents
from dynprof.analysis.vendor_files.tables import own_tables, write_tables
from tests.real_traces import everything, on_each
from tests.unit.analysis.measures.numbered import (
    GRAPH,
    ON_DEVICE,
    Event,
    operator,
    run_again,
    write,
)
from tests.unit.analysis.random_models import random_model

if TYPE_CHECKING:
    from pathlib import Path


def innermost(spans: list[Event], when: int) -> Event | None:
    """Return the shortest span that is open at a time; the spans are sorted by begin."""
    until = bisect.bisect_right(spans, when, key=lambda span: span["begin"])
    there = [span for span in spans[max(0, until - 200) : until] if when < span["end"]]
    return min(there, key=lambda span: (span["end"] - span["begin"], -span["begin"]), default=None)


def outermost(spans: list[Event]) -> list[Event]:
    """Return the spans that are inside no other one."""
    found, until = list[Event](), dict[Any, int]()
    for one in sorted(spans, key=lambda e: (e["begin"], -e["end"])):
        if one["end"] > until.get(one["thread"], 0):
            found.append(one)
            until[one["thread"]] = one["end"]
    return found


def add_to(by_thread: dict[Any, list[Event]], spans: list[Event]) -> None:
    """Add spans to those of their threads."""
    for one in spans:
        by_thread[one["thread"]].append(one)
        by_thread[one["thread"]].sort(key=lambda e: e["begin"])


def plain(events: list[Event]) -> dict[tuple[str, str], list[int]]:
    """Return count and device time of backward passes, by forward operator and node.

    What runs again in them, without what is nested in that, has a row of its own.
    """
    operators = [e for e in events if e.get("ph") == "X" and e["kind"] in ("cpu_op", "operator")]
    graph, numbered = defaultdict[Any, list[Event]](list), defaultdict[Any, list[Event]](list)
    for one in sorted(operators, key=lambda e: e["begin"]):
        if one["name"].startswith(GRAPH):
            graph[one["thread"]].append(one)
    for one in operators:
        number = one.get("args", {}).get("Sequence number")
        around = innermost(graph[one["thread"]], one["begin"])
        within = around is not None and around["args"].get("Sequence number") == number
        if number is not None and not one["name"].startswith(GRAPH) and not within:
            numbered[number].append(one)
    names: dict[int, tuple[str, str]] = {}
    found = defaultdict[tuple[str, str], list[int]](lambda: [0, 0])
    for one in (node for nodes in graph.values() for node in nodes):
        made = numbered[one.get("args", {}).get("Sequence number")]
        before = [e for e in made if e["begin"] < one["begin"]]
        known = before and len({e["thread"] for e in made}) == 1
        last = max(before, key=lambda e: (e["begin"], -e["end"])) if known else {"name": ""}
        names[id(one)] = last["name"], one["name"].removeprefix(GRAPH).removeprefix(": ")
        found[names[id(one)]][0] += 1
    again = outermost(run_again(events))
    names |= dict.fromkeys(map(id, again), ("", "recomputation"))
    found |= {("", "recomputation"): [len(again), 0]} if again else {}
    add_to(graph, again)
    calls = {
        e["args"]["correlation"]: e
        for e in reversed(events)
        if e["kind"] in ("cuda_runtime", "cuda_driver", "runtime")
        and "correlation" in e.get("args", {})
    }
    for work in events:
        call = (
            calls.get(work.get("args", {}).get("correlation"))
            if work["kind"] in ON_DEVICE
            else None
        )
        around = innermost(graph[call["thread"]], call["begin"]) if call else None
        if around:
            found[names[id(around)]][1] += work["end"] - work["begin"]
    return dict(found)


def check(path: Path) -> MeasuredTrace:
    """Compare with the plain count."""
    measured = MeasuredTrace(path)
    ours = {(one.operator, one.node): [one.count, one.device] for one in measured.passes}
    assert ours == plain(everything(path))
    return measured


@pytest.mark.parametrize("seed", range(8))
def test_on_random_models(tmp_path: Path, seed: int) -> None:
    """This covers two threads, recomputed modules, and nodes of unknown origin."""
    measured = check(random_model(tmp_path, seed))
    assert any(one.operator == "aten::addmm" and one.device for one in measured.passes)


@on_each
def test_on_real_traces(path: Path) -> None:
    """This covers several vendors and versions of torch."""
    check(path)


@on_each
def test_forward_ends_of_arrows_are_the_same(path: Path) -> None:
    """Newer traces have an arrow from each forward operator to its backward pass."""
    events = everything(path)
    starts = sorted(e["begin"] for e in events if e.get("cat") == "fwdbwd" and e["ph"] == "s")
    if not starts:
        return
    spans = (measured := MeasuredTrace(path)).trace.spans
    graph = measured.trace.named(lambda name: name.startswith(GRAPH)) & (spans["sequence"] >= 0)
    ours = spans["start"][forward_operators(measured.trace, np.flatnonzero(graph))]
    shift = min(e["begin"] for e in events if e.get("ph") == "X") - int(spans["start"].min())
    assert sorted((ours + shift).tolist()) == starts


def test_ambiguous_sequence_numbers_have_no_operator(tmp_path: Path) -> None:
    """Sequence numbers of several threads, and nodes without one, have no operator."""
    events = [
        operator("aten::addmm", 1, 2, 7), operator("aten::addmm", 1, 2, 8),
        operator("aten::mul", 1, 2, 8, thread=3),
        operator(f"{GRAPH}: AddmmBackward0", 50, 9, 7, thread=2),
        operator(f"{GRAPH}: MulBackward0", 60, 9, 8, thread=2),
        {"name": f"{GRAPH}: AccumulateGrad", "cat": "cpu_op", "ts": 70, "dur": 4, "tid": 2},
    ]  # fmt: skip
    measured = write(tmp_path / "a.trace.json", events)
    made = {path.name: path for path in write_tables(own_tables(measured), tmp_path)}
    with made["backward_operators.csv"].open(newline="") as file:
        rows = [(row["Forward Operator"], row["Backward"]) for row in csv.DictReader(file)]
    assert rows == [
        ("(not known)", "MulBackward0"),
        ("aten::addmm", "AddmmBackward0"),
        ("(not known)", "AccumulateGrad"),
    ]


def test_the_page_has_the_backward_of_each_operator(tmp_path: Path) -> None:
    """The page has ms in the mean step; operators without a backward pass have none."""
    measured = MeasuredTrace(random_model(tmp_path, 3))
    rows = {row[0]: row[6] for row in contents(measured)["operators"]["rows"]}
    expected = sum(one.device for one in measured.passes if one.operator == "aten::addmm")
    assert rows["aten::addmm"] == pytest.approx(expected / len(measured.marked) / 1e6)
    assert expected > 0
    assert rows["aten::linear"] is None

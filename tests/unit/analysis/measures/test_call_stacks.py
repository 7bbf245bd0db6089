"""Each operator's Python frames, also in recursion with thousands of levels."""

from __future__ import annotations

import json
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.measures.user_code import MAX_FRAMES, MAX_LEVELS, SEPARATOR
from dynprof.analysis.runs.one_trace import write_analysis

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]


def written(folder: Path, events: list[Event]) -> MeasuredTrace:
    """Write a trace, and read it."""
    path = folder / "a.trace.json"
    whole = [{"ph": "X", "pid": 1, "tid": 1, **event} for event in events]
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": whole}))
    return MeasuredTrace(path)


def nested(generator: random.Random, begin: float, end: float, depth: int) -> list[Event]:
    """Return random nested frames and operators within a time span."""
    found: list[Event] = []
    while end - begin > 1 and depth < 60 and (not found or generator.random() < 0.8):
        until = round(begin + (end - begin) * generator.random(), 3)
        kind = generator.choice(["python_function", "python_function", "cpu_op"])
        name = f"{kind} {generator.randint(0, 3)}"
        found.append({"name": name, "cat": kind, "ts": begin, "dur": round(until - begin, 3)})
        found += nested(generator, round(begin + 0.001, 3), round(until - 0.001, 3), depth + 1)
        begin = round(until + 0.01, 3)
    return found


def frames_above(event: Event, events: list[Event]) -> list[str]:
    """Return the names of the frames around an event, the innermost first."""
    until = event["ts"] + event["dur"]
    around = [
        e for e in events
        if e is not event and e["cat"] == "python_function"
        and e["ts"] <= event["ts"] and e["ts"] + e["dur"] >= until
    ]  # fmt: skip
    return [e["name"] for e in sorted(around, key=lambda e: -e["ts"])]


@pytest.mark.parametrize("seed", range(8))
def test_as_a_plain_search_finds_them(tmp_path: Path, seed: int) -> None:
    """Frames equal those of a plain search, for frames and operators nested in any order."""
    events = nested(random.Random(seed), 0, 2_000, 0)  # noqa: S311 - nothing is secret here
    measured = written(tmp_path, events)
    by_begin = {round(e["ts"] * 1000): e for e in events if e["cat"] == "cpu_op"}
    assert len(measured.operators.span)
    for place, span in enumerate(measured.operators.span.tolist()):
        event = by_begin[int(measured.trace.spans["start"][span])]
        assert measured.call_stacks(place) == SEPARATOR.join(frames_above(event, events))


def recursion(depth: int) -> list[Event]:
    """Return two steps of a recursive function, with an operator in each call."""
    found: list[Event] = []
    for step in range(2):
        begin = step * 1_000_000
        label = {"name": f"ProfilerStep#{step}", "cat": "user_annotation"}
        found.append({**label, "ts": begin, "dur": 900_000})
        for level in range(depth):
            name, length = f"model.py({level % 3}): down", 800_000 - 40 * level
            frame = {"name": name, "cat": "python_function", "ts": begin + 2 * level + 1}
            found.append({**frame, "dur": length})
            operator = {"name": "aten::add", "cat": "cpu_op", "ts": begin + 2 * level + 2}
            found.append({**operator, "dur": 1})
    return found


@pytest.mark.parametrize("depth", [MAX_FRAMES, MAX_FRAMES + 1])
def test_of_recursion_the_innermost_are_named(tmp_path: Path, depth: int) -> None:
    """The number of other frames is given, too."""
    measured = written(tmp_path, recursion(depth))
    adds = [
        place for place, span in enumerate(measured.operators.span.tolist())
        if measured.trace.name(span) == "aten::add"
    ]  # fmt: skip
    frames = measured.call_stacks(adds[depth - 1]).split(SEPARATOR)
    expected = [f"model.py({level % 3}): down" for level in reversed(range(depth))]
    if depth > MAX_FRAMES:
        expected[MAX_FRAMES:] = [f"({depth - MAX_FRAMES:,} more)"]
    assert frames == expected


@pytest.mark.slow
def test_everything_is_made_of_a_recursion(tmp_path: Path) -> None:
    """Tables, database, stacks and report work beyond Python's own limit; no time is lost."""
    depth = 9000
    assert depth > sys.getrecursionlimit()
    measured = written(tmp_path, recursion(depth))
    made = {path.name: path for path in write_analysis(measured, ("text", "db"))}
    assert {"operator_details.csv", "report.html", "stacks.folded"} <= set(made)
    assert "ascend_pytorch_profiler.db" in made
    assert sum(measured.tree.self_ns) == 2 * 800_000_000
    lines = made["stacks.folded"].read_text().splitlines()
    assert max(line.count(";") for line in lines) == MAX_LEVELS - 1
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == pytest.approx(1_600_000, rel=1e-3)
    assert made["stacks.folded"].stat().st_size < 10_000_000

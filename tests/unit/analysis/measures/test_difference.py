"""Two captures against each other."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.difference import growths, phase_growths, why_not_comparable
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from tests.processes import DYNPROF, run

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, steps: int, products: int, ms: float, **event: Any) -> Path:
    """Write a trace with so many products of so many ms in each of so many steps."""
    events: list[dict[str, Any]] = []
    common = {"ph": "X", "pid": 1, "tid": 1}
    for step in range(steps):
        begin = step * 1e6
        name = f"ProfilerStep#{step}"
        events.append({**common, "name": name, "cat": "user_annotation", "ts": begin, "dur": 9e5})
        events.append({**common, "name": "aten::add", "cat": "cpu_op", "ts": begin + 5, "dur": 10})
        for number in range(products):
            ts, dur = begin + 1000 + number * ms * 1000, ms * 1000
            events.append({**common, "name": "aten::mm", "cat": "cpu_op", "ts": ts, "dur": dur})
    if event:
        events.append({**common, "name": "extra", "ts": 900_001, "dur": 1, **event})
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
    return path


def test_what_grew_is_named_by_what_it_costs_a_step(tmp_path: Path) -> None:
    """Windows of other lengths are compared step by step; what did not change is left out."""
    one = MeasuredTrace(write(tmp_path / "a.trace.json", steps=2, products=3, ms=10))
    other = MeasuredTrace(write(tmp_path / "b.trace.json", steps=5, products=4, ms=20))
    first, *rest = growths(one, other)
    assert (first.name, first.where, first.count) == ("aten::mm", "host", (3, 4))
    assert first.time_ns == (30e6, 80e6)
    assert first.cost_ns == 50e6
    assert rest == []
    assert why_not_comparable(one, other) == []


def test_phases_that_grew_are_named(tmp_path: Path) -> None:
    """By their own labels: the backward pass takes 3 ms more of a step, which is no longer."""
    common = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation"}
    captures = []
    for number, backward_ms in enumerate((4, 7)):
        events = [
            {**common, "name": "ProfilerStep#1", "ts": 0, "dur": 20_000},
            {**common, "name": "dataloader", "ts": 10, "dur": 1_000},
            {**common, "name": "## backward ##", "ts": 2_000, "dur": backward_ms * 1000},
            {**common, "name": "Optimizer.step#Adam.step", "ts": 15_000, "dur": 2_000},
        ]
        path = tmp_path / f"{number}.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events}))
        captures.append(MeasuredTrace(path))
    found = {growth.name: growth.cost_ns for growth in phase_growths(*captures)}
    assert found == {"backward": 3e6, "rest": -3e6}


def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    """Frames in one of them, a device in the other."""
    one = MeasuredTrace(write(tmp_path / "a.trace.json", 2, 1, 1, cat="python_function"))
    other = MeasuredTrace(write(tmp_path / "b.trace.json", 2, 1, 1, cat="kernel"))
    assert why_not_comparable(one, other) == [
        "only the first has the host's Python frames",
        "only the second has a device",
    ]


def test_names_are_shown_as_they_are(tmp_path: Path) -> None:
    """Brackets mean nothing to the terminal, control characters are escaped."""
    name = "[/] [red]a\u001b[2J<b>"
    path = write(tmp_path / "a.trace.json", 1, 1, 1, cat="cpu_op", name=name)
    other = write(tmp_path / "b.trace.json", 1, 1, 1)
    for command in (["top", str(path)], ["diff", str(other), str(path)]):
        done = run([*DYNPROF, *command], env={**os.environ, "COLUMNS": "150"})
        assert done.returncode == 0, done.stderr
        assert "[/] [red]a" in done.stdout
        assert "<b>" in done.stdout
        assert "\x1b[2J" not in done.stdout


def test_large_counts_are_written_out(tmp_path: Path) -> None:
    """30,000 calls in a step are no 3e+04; what is no whole number keeps four digits."""
    paths = [write(tmp_path / f"{n}.trace.json", 1, n, ms=0.01) for n in (3, 30_000)]
    done = run([*DYNPROF, "diff", *map(str, paths)], env={**os.environ, "COLUMNS": "120"})
    (row,) = (line.split() for line in done.stdout.splitlines() if line.startswith("aten::mm"))
    assert row[2:4] == ["3", "30,000"]


@pytest.mark.parametrize("width", [40, 80, 0])
def test_the_tables_fit_the_screen(tmp_path: Path, width: int) -> None:
    """No line is wider, a long name is one line; a pipe has it whole. Steps are no operators."""
    name = "void at::native::elementwise_kernel<128, 2, at::native::add_kernel>(int, float)"
    path = write(tmp_path / "a.trace.json", 2, 3, 20, cat="cpu_op", name=name)
    other = write(tmp_path / "b.trace.json", 2, 3, 10, cat="cpu_op", name=name, dur=9)
    env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    for command in (["top", str(path)], ["diff", str(path), str(other)]):
        screen = {"COLUMNS": str(width)} if width else {}
        done = run([*DYNPROF, *command], env={**env, **screen})
        assert (done.returncode, done.stderr) == (0, "")
        assert "ProfilerStep" not in done.stdout
        (row,) = (line for line in done.stdout.splitlines() if line.startswith("void at"))
        if width:
            assert max(map(len, done.stdout.splitlines())) <= width
            assert "…" in row
        else:
            assert name in row


def test_the_command(tmp_path: Path) -> None:
    """Prints the table; its exit code says whether the numbers mean the same."""
    one = write(tmp_path / "a.trace.json", 2, 3, 10)
    other = write(tmp_path / "b.trace.json", 2, 3, 20, cat="python_function")
    codes = []
    for second in (one, other, tmp_path / "no"):
        done = run([*DYNPROF, "diff", one, second])
        codes.append(done.returncode)
        if second == other:
            assert "aten::mm" in done.stdout
            assert "+30.000" in done.stdout
            assert "only the second has the host's Python frames" in done.stderr
    assert codes == [0, 1, 2]

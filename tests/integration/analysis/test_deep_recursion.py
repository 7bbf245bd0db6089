"""A real recording of recursion, thousands of frames deep."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.runs.one_trace import write_analysis

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

DEPTH = 9000


def down(tensor: Any, depth: int) -> Any:
    """Add one in each of many calls."""
    return (down(tensor, depth - 1) if depth else tensor) + 1


def test_deep_recursion(tmp_path: Path) -> None:
    """All of it is read, and everything is made."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3 * DEPTH)
    try:
        with torch.profiler.profile(with_stack=True) as profiler:
            down(torch.ones(2), DEPTH)
    finally:
        sys.setrecursionlimit(limit)
    path = tmp_path / "deep.trace.json"
    profiler.export_chrome_trace(str(path))
    made = {file.name for file in write_analysis(MeasuredTrace(path), ("text", "db"))}
    assert {"operator_details.csv", "stacks.folded", "report.html"} <= made
    measured = MeasuredTrace(path)
    adds = [
        place for place, span in enumerate(measured.operators.span.tolist())
        if measured.trace.name(span) == "aten::add"
    ]  # fmt: skip
    assert len(adds) == DEPTH + 1
    assert any("more)" in measured.call_stacks(place) for place in adds)

"""Traces of two steps with given spans, and the findings on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.analysis.findings.rules import all_findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.findings.finding import Finding

MS = 1000
STEP_MS = 100
Span = tuple[str, str, float, float]
"""Name, category, start and duration in ms."""

HEALTHY: list[Span] = [
    ("dataloader", "user_annotation", 0, 1),
    ("aten::mm", "cpu_op", 1, 20),
    ("aten::add", "cpu_op", 21, 20),
    ("aten::relu", "cpu_op", 41, 20),
    ("aten::cat", "cpu_op", 61, 20),
    ("aten::sum", "cpu_op", 81, 18),
]
DEVICE: list[Span] = [
    ("aten::mm", "cpu_op", 0, 1),
    *((f"gemm_{n}", "kernel", n * 9.9, 9.8) for n in range(10)),
]


def measured(path: Path, spans: list[Span], *more: dict[str, Any], **members: Any) -> MeasuredTrace:
    """Write two steps with the same spans, and read them."""
    events: list[dict[str, Any]] = [*more]
    for step in range(2):
        begin = step * STEP_MS
        for name, category, since, took in [(f"ProfilerStep#{step}", "user_annotation", 0, STEP_MS),
                                            *spans]:  # fmt: skip
            events.append(
                {"ph": "X", "pid": 1, "tid": 9 if category == "kernel" else 1, "name": name,
                 "cat": category, "ts": (begin + since) * MS, "dur": took * MS,
                 "args": {"device": 0, "stream": 7} if category.startswith(("k", "gpu")) else {}}
            )  # fmt: skip
    trace = path / "a.trace.json"
    trace.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": events, **members}))
    return MeasuredTrace(trace)


def found(measured: MeasuredTrace) -> dict[str, Finding]:
    """Return the findings by their titles."""
    return {finding.title: finding for finding in all_findings(measured, least=0)}

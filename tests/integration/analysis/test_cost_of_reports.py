"""What a report costs: memory grows little with the trace, and unneeded packages stay unloaded."""

from __future__ import annotations

import json
import sys
import tracemalloc
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.report.contents import write_report
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path

BYTES_A_BYTE = 3
"""Bytes of memory for a byte of a trace of many short steps, at most."""


def short_steps(folder: Path, count: int) -> Path:
    """Write a trace of short steps, each with ten operators that launch a kernel."""
    host, events = {"ph": "X", "pid": 1, "tid": 1}, []
    for step in range(count):
        label = {"cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        events.append({**host, **label, "ts": 1000 * step, "dur": 990})
        for place in range(10):
            begin, number = 1000 * step + 20 + 90 * place, 10 * step + place
            of = {"correlation": number, "External id": number}
            work = {"ph": "X", "pid": 0, "tid": 7, "args": {**of, "device": 0, "stream": 7}}
            call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": of}
            events += [
                {**host, "cat": "cpu_op", "name": "aten::mm", "ts": begin, "dur": 40, "args": of},
                {**host, **call, "ts": begin + 5, "dur": 8},
                {**work, "cat": "kernel", "name": "gemm", "ts": begin + 20, "dur": 60},
            ]
    path = folder / f"{count}.pt.trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def peak_of_report(path: Path) -> int:
    """Return the bytes that a report takes at most."""
    tracemalloc.start(1)
    try:
        write_report(MeasuredTrace(path), path.with_suffix(".html"))
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_a_report_takes_three_bytes_a_byte(tmp_path: Path) -> None:
    """A trace of 15 MB has 93,000 events in 3,000 steps; packages do not count."""
    peak_of_report(short_steps(tmp_path, 10))  # loads what is loaded on first use
    path = short_steps(tmp_path, 3000)
    assert peak_of_report(path) <= BYTES_A_BYTE * path.stat().st_size


def test_a_trace_without_a_manifest_needs_no_model_of_one(tmp_path: Path) -> None:
    """Loading pydantic takes as long as the report of a small trace."""
    path = short_steps(tmp_path, 2)
    code = (
        "import sys; from pathlib import Path\n"
        "from dynprof.analysis.runs.window_report import report_on\n"
        "report_on(Path(sys.argv[1])); sys.exit('pydantic' in sys.modules)"
    )
    assert run([sys.executable, "-c", code, str(path)]).returncode == 0

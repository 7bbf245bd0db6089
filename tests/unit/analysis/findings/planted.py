"""Steps on a device with a gap, into which a test injects the cause of the wait."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.analysis.findings.rules import all_findings
from dynprof.analysis.measures.measured_trace import MeasuredTrace

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.findings.finding import Finding

MAIN, OTHER, DEVICE = 1, 2, 0
STEP = 100.0
FREE, BUSY = 60.0, 80.0
"""The device is idle between these times of a step, in ms. The next step begins at once."""

EARLY, LATE = 30.0, BUSY - 0.015
"""Launch times of the next kernel in ms: long before the gap, or just before its start."""
HOST, QUEUE = "The device waits for the host", "Work in the queue does not start"


class Planted:
    """Two steps of 100 ms; times in ms since the start of a step.

    Args:
        launched: The launch time of the kernel that begins at 80 ms; None omits its launch.
    """

    def __init__(self, launched: float | None) -> None:
        self.events: list[dict[str, Any]] = []
        self._correlation = 0
        for step in range(2):
            begin = step * STEP
            self._add(f"ProfilerStep#{step}", "user_annotation", MAIN, begin, STEP)
            self._add("train.py(9): main", "python_function", MAIN, begin, STEP)
        self.kernel("gemm", 0, FREE, launched=-0.02)
        self.kernel("gemm", BUSY, STEP - BUSY, launched=launched)

    def kernel(
        self,
        name: str,
        at: float,
        took: float,
        launched: float | None,
        call: str = "",
        stream: int = 7,
    ) -> None:
        """Add a kernel or a copy. Its launch takes 10 us, or ends with a blocking copy."""
        self._correlation += 2
        for step in range(2):
            begin, told = step * STEP, {"correlation": self._correlation + step}
            if launched is not None:
                lasts = at + took - launched + 0.01 if call else 0.01
                name_of_call = call or "cudaLaunchKernel"
                self._add(name_of_call, "cuda_runtime", MAIN, begin + launched, lasts, told)
            args = {**told, "device": 0, "stream": stream}
            category = "gpu_memcpy" if "Memcpy" in name else "kernel"
            self._add(name, category, DEVICE, begin + at, took, args)

    def on_host(
        self, name: str, category: str, at: float, until: float, thread: int = MAIN
    ) -> None:
        """Add work of the host to each step."""
        for step in range(2):
            self._add(name, category, thread, step * STEP + at, until - at, {"correlation": 0})

    def _add(
        self,
        name: str,
        category: str,
        thread: int,
        at: float,
        took: float,
        args: dict[str, Any] | None = None,
    ) -> None:
        times = {"ts": round(1000 * at, 3), "dur": round(1000 * took, 3)}
        event = {"ph": "X", "pid": 5, "tid": thread, "name": name, "cat": category}
        self.events.append({**event, **times, "args": args or {}})

    def found(self, folder: Path) -> dict[str, Finding]:
        """Return the findings by title, without the costliest kernel."""
        return {one.title: one for one in self._all(folder) if "takes the most" not in one.title}

    def costliest(self, folder: Path) -> Finding:
        """Return the finding on the costliest kernel."""
        (one,) = (one for one in self._all(folder) if "takes the most" in one.title)
        return one

    def _all(self, folder: Path) -> list[Finding]:
        path = folder / "a.trace.json"
        path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": self.events}))
        return all_findings(MeasuredTrace(path), least=0)


def only(job: Planted, folder: Path, title: str, share: float = 0.2) -> str:
    """Return the figures of the only finding, which takes a share of the step."""
    found = job.found(folder)
    assert list(found) == [title]
    assert found[title].share == pytest.approx(share, abs=0.003)
    assert str(found[title]).endswith(".")
    return found[title].detail

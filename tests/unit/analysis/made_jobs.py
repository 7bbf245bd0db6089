"""Jobs with a device, made event by event, so that tests know what they wait for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynprof.analysis.measures.measured_trace import MeasuredTrace

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.analysis.measures.critical_path import CriticalPath

STEP = 1000
COMPUTE, SIDE = 7, 20
MAIN, ENGINE = 1, 2


class Job:
    """A job of one or two steps of 1,000 us, made event by event; times in us."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def step(self, number: int = 0, length: float = STEP) -> None:
        """Mark a step."""
        self.host(f"ProfilerStep#{number}", number * STEP, length, "user_annotation")

    def host(
        self, name: str, begin: float, length: float, category: str = "cpu_op", thread: int = MAIN
    ) -> int:
        """Add an event of the host; return its correlation."""
        self._correlation += 1
        args = {"correlation": self._correlation} if category == "cuda_runtime" else {}
        self._add(name, category, thread, begin, length, args)
        return self._correlation

    def call(self, name: str, begin: float, length: float, thread: int = MAIN) -> int:
        """Add a runtime call of the host; return its correlation."""
        return self.host(name, begin, length, "cuda_runtime", thread)

    def launch(
        self,
        name: str,
        called: float,
        begin: float,
        length: float,
        stream: int = COMPUTE,
        thread: int = MAIN,
    ) -> None:
        """Launch a kernel, which takes 5 us of the host."""
        self.work(name, self.call("cudaLaunchKernel", called, 5, thread), begin, length, stream)

    def work(
        self, name: str, correlation: int, begin: float, length: float, stream: int = COMPUTE
    ) -> None:
        """Add work of a device for a call."""
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        args = {"correlation": correlation, "device": 0, "stream": stream}
        self._add(name, category, stream, begin, length, args, pid=0)

    def told(self, kind: str, correlation: int, stream: int, begin: float, **more: int) -> None:
        """Add CUPTI's event of a wait."""
        args = {"correlation": correlation, "device": 0, "stream": stream, **more}
        self._add(kind, "cuda_sync", stream, begin, 1, args, pid=0)

    def _add(
        self,
        name: str,
        category: str,
        thread: int,
        begin: float,
        length: float,
        args: dict[str, Any],
        pid: int = 9,
    ) -> None:
        event = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": thread}
        self.events.append({**event, "ts": begin, "dur": length, "args": args})

    def measured(self, folder: Path) -> MeasuredTrace:
        """Write the trace, and return its measurements."""
        trace = folder / "a.trace.json"
        trace.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": self.events}))
        return MeasuredTrace(trace)

    def path(self, folder: Path) -> CriticalPath:
        """Return the critical path."""
        found = self.measured(folder).critical_path
        assert found is not None
        return found

"""Random jobs whose host waits, allocates, loads data, saves, collects, copies and optimizes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.analysis.random_traces import BACKWARD, MAIN, STREAMS, RandomJob

if TYPE_CHECKING:
    from pathlib import Path

_LABELS = ("dataloader", "checkpoint", "## optimizer ##", "Optimizer.step#Adam.step", "forward")
_OWN = ("dynprof/runtime/error_boundary.py(48): attempt", "python_function")
_HELD_UP = (("collection", "gc"), ("x (dynamo_timed)", "cpu_op"), _OWN)


class WaitingJob(RandomJob):
    """The same job, which sometimes does other work instead of launching."""

    def _call(self, thread: int, operator: int) -> None:
        kind = self._random.random()
        began = self._now[thread]
        if kind < 0.1:
            self._pass(thread, 40)
            name = self._random.choice(["cudaMalloc", "cudaFree", "cudaHostAlloc"])
            self._add(name, "cuda_runtime", thread, began, self._now[thread], {"correlation": 0})
        elif kind < 0.2:
            self._pageable(thread)
        elif kind < 0.3:
            super()._call(thread, operator)
            self._pass(thread, 150)
            name = self._random.choice(_LABELS)
            self._add(name, "user_annotation", thread, began, self._now[thread])
        elif kind < 0.36:
            self._pass(thread, 60)
            what = self._random.choice(_HELD_UP)
            self._add(*what, thread, began, self._now[thread])
        elif kind < 0.5:
            self._pass(thread, 200)
        else:
            super()._call(thread, operator)

    def _pageable(self, thread: int) -> None:
        """Copy from pageable memory: the call ends with the copy."""
        self._correlation += 1
        began, stream = self._now[thread], self._random.choice(STREAMS)
        start = round(max(self._free[stream], began) + self._some(20), 3)
        self._free[stream] = round(start + self._some(30), 3)
        self._now[thread] = round(self._free[stream] + self._some(8), 3)
        told = {"correlation": self._correlation, "External id": self._correlation}
        self._add("cudaMemcpyAsync", "cuda_runtime", thread, began, self._now[thread], told)
        name = "Memcpy DtoH (Device -> Pageable)"
        args = {**told, "device": 0, "stream": stream}
        self._add(name, "gpu_memcpy", stream, start, self._free[stream], args, pid=0)

    def aside(self) -> None:
        """Let the other thread wait, load and watch, which delays no other thread."""
        began = self._now[MAIN]
        told = {"correlation": 0}
        self._add("cudaEventSynchronize", "cuda_runtime", BACKWARD, began, began + 70, told)
        self._add("dataloader", "user_annotation", BACKWARD, began + 80, began + 150)
        self._add(*_OWN, BACKWARD, began, began + 160)


def random_waits(folder: Path, seed: int, steps: int = 4) -> Path:
    """Write a random trace of a job that waits; return its path."""
    job = WaitingJob(seed)
    for _ in range(2):
        job.aside()
        job.steps(steps)
    path = folder / f"waits_{seed}.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": job.events}))
    return path

"""Random traces in which streams, calls and threads wait for each other, with these waits recorded.

The rules are those of a real device. A stream that waits for an event begins nothing before it. A
synchronising call returns after the work that it waits for. The main thread stops during autograd's
backward pass.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.unit.analysis.random_traces import BACKWARD, STREAMS, RandomJob

if TYPE_CHECKING:
    from pathlib import Path


class RandomWaits(RandomJob):
    """The same job, with events between its streams. For an odd seed, CUPTI records them.

    Args:
        seed: The same seed gives the same trace.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._told = seed % 2 == 1

    def _operator(self, thread: int, depth: int) -> None:
        if depth or thread != BACKWARD:
            super()._operator(thread, depth)
            return
        began = self._now[thread]
        self._pass(thread, 5)
        super()._operator(thread, 1)
        self._pass(thread, 5)
        name = "autograd::engine::evaluate_function: MulBackward0"
        self._add(name, "cpu_op", thread, began, self._now[thread])

    def _call(self, thread: int, operator: int) -> None:
        kind = self._random.random()
        if kind < 0.15:
            self._wait_for_event(thread)
        elif kind < 0.25:
            self._wait_for_stream(thread)
        elif kind < 0.35:
            self._launch(thread, operator, "cudaLaunchKernel", "kernel", "ncclKernel_AllReduce")
        elif kind < 0.42:
            self._blocking_copy(thread)
        elif kind < 0.47:
            began = self._now[thread]
            self._pass(thread, 20)
            name = "enumerate(DataLoader)#_X.__next__"
            self._add(name, "user_annotation", thread, began, self._now[thread])
        else:
            super()._call(thread, operator)

    def _plain_call(self, thread: int, name: str, most: int = 3) -> int:
        """Make a call without device time; return its correlation."""
        self._correlation += 1
        began = self._now[thread]
        self._pass(thread, most)
        told = {"correlation": self._correlation, "External id": self._correlation}
        self._add(name, "cuda_runtime", thread, began, self._now[thread], told)
        return self._correlation

    def _tell(self, kind: str, correlation: int, stream: int, **more: int) -> None:
        if self._told:
            args = {"correlation": correlation, "device": 0, "stream": stream, **more}
            now = max(self._now.values())
            self._add(kind, "cuda_sync", stream, now, now + 1, args, pid=0)

    def _wait_for_event(self, thread: int) -> None:
        """Let a stream wait for all work that another one has so far."""
        waiting, source = self._random.sample(STREAMS, 2)
        record = self._plain_call(thread, "cudaEventRecord")
        call = self._plain_call(thread, "cudaStreamWaitEvent")
        self._free[waiting] = max(self._free.values())
        more = {"wait_on_stream": source, "wait_on_cuda_event_record_corr_id": record}
        self._tell("Stream Wait Event", call, waiting, **more)

    def _wait_for_stream(self, thread: int) -> None:
        """Let the host wait for one stream."""
        stream, began = self._random.choice(STREAMS), self._now[thread]
        self._correlation += 1
        self._now[thread] = round(max(began, self._free[stream]) + self._some(5), 3)
        told = {"correlation": self._correlation, "External id": self._correlation}
        self._add("cudaStreamSynchronize", "cuda_runtime", thread, began, self._now[thread], told)
        self._tell("Stream Sync", self._correlation, stream)

    def _blocking_copy(self, thread: int) -> None:
        """Copy from pageable memory; the call ends after the copy, or does part of it."""
        self._correlation += 1
        began, stream = self._now[thread], self._random.choice(STREAMS)
        start = round(max(self._free[stream], began + self._some(6)), 3)
        ended = round(start + 2 + self._some(40), 3)
        self._free[stream] = ended
        self._now[thread] = round(ended + self._random.choice([-1, 3]), 3)
        told = {"correlation": self._correlation, "device": 0, "stream": stream}
        name = "Memcpy DtoH (Device -> Pageable)"
        self._add("cudaMemcpyAsync", "cuda_runtime", thread, began, self._now[thread], told)
        self._add(name, "gpu_memcpy", stream, start, ended, told, pid=0)


def random_waits(folder: Path, seed: int, steps: int = 4) -> Path:
    """Write a random trace of a job whose parts wait for each other; return its path."""
    job = RandomWaits(seed)
    job.steps(steps)
    path = folder / f"waits_{seed}.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": job.events}))
    return path

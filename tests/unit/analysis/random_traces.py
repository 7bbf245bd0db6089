"""Random traces of a job with a device, which obey the rules of a real one.

A host thread makes one call after the other, and sometimes a backward thread does. Each stream runs
its work in the order of the launches, and sometimes waits for another stream. No work begins before
its launch.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

STREAMS = (7, 20)
MAIN, BACKWARD = 1, 2
_SYNCHRONISES = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy")


class RandomJob:
    """Steps of operators that launch kernels; times in us, three digits.

    Args:
        seed: The same seed gives the same trace.

    Attributes:
        events: The trace's events.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - nothing is secret here
        self._now = {MAIN: 1000.0, BACKWARD: 1000.0}
        self._free = dict.fromkeys(STREAMS, 0.0)
        self._correlation = 0
        self._external = 0
        self._ids_are_real = self._random.random() < 0.5
        self.events: list[dict[str, Any]] = []

    def steps(self, count: int) -> None:
        """Run steps, each some operators long."""
        for number in range(count):
            began = self._now[MAIN]
            for _ in range(self._random.randint(1, 6)):
                thread = MAIN if self._random.random() < 0.8 else BACKWARD
                self._now[thread] = max(self._now.values())
                self._operator(thread, depth=0)
                self._now[MAIN] = max(self._now.values())
                self._pass(MAIN, 30)
            self._add(f"ProfilerStep#{number}", "user_annotation", MAIN, began, self._now[MAIN])

    def _operator(self, thread: int, depth: int) -> None:
        began = self._now[thread]
        self._external += 1
        number = self._external
        self._pass(thread, 10)
        for _ in range(self._random.randint(0, 3)):
            if depth < 3 and self._random.random() < 0.4:
                self._operator(thread, depth + 1)
            else:
                self._call(thread, number)
            self._pass(thread, 10)
        name = f"aten::op{self._random.randint(0, 5)}"
        self._add(name, "cpu_op", thread, began, self._now[thread], {"External id": number})

    def _call(self, thread: int, operator: int) -> None:
        kind = self._random.random()
        if kind < 0.12:
            self._synchronise(thread)
        elif kind < 0.22:
            self._launch(thread, operator, "cudaMemcpyAsync", "gpu_memcpy", self._copy())
        elif kind < 0.27:
            count = self._random.randint(2, 5)
            self._launch(thread, operator, "cudaGraphLaunch", "kernel", "graph_part", count)
        else:
            name = f"kernel{self._random.randint(0, 4)}"
            self._launch(thread, operator, "cudaLaunchKernel", "kernel", name)

    def _copy(self) -> str:
        return self._random.choice(
            ["Memcpy HtoD (Pageable -> Device)", "Memcpy DtoD (Device -> Device)",
             "Memcpy HtoD (Pinned -> Device)"]
        )  # fmt: skip

    def _launch(
        self, thread: int, operator: int, call: str, category: str, name: str, count: int = 1
    ) -> None:
        self._correlation += 1
        correlation, began = self._correlation, self._now[thread]
        self._pass(thread, 8)
        external = operator if self._ids_are_real else correlation
        told = {"correlation": correlation, "External id": external}
        if self._random.random() < 0.95:
            self._add(call, "cuda_runtime", thread, began, self._now[thread], told)
        stream = self._random.choice(STREAMS)
        if self._random.random() < 0.1:  # it waits for the other stream
            self._free[stream] = max(self._free.values())
        for _ in range(count):
            start = max(self._free[stream], began + self._some(6))
            self._free[stream] = round(start + self._some(60), 3)
            args = {**told, "device": 0, "stream": stream, "grid": [2, 3, 1], "block": [32, 1, 1]}
            self._add(name, category, stream, start, self._free[stream], args, pid=0)

    def _synchronise(self, thread: int) -> None:
        self._correlation += 1
        began = self._now[thread]
        self._now[thread] = round(max(began, *self._free.values()) + self._some(5), 3)
        name = self._random.choice(_SYNCHRONISES)
        told = {"correlation": self._correlation, "External id": self._correlation}
        self._add(name, "cuda_runtime", thread, began, self._now[thread], told)

    def _pass(self, thread: int, most: int) -> None:
        self._now[thread] = round(self._now[thread] + self._some(most), 3)

    def _some(self, most: int) -> float:
        return self._random.randint(1, most * 1000) / 1000

    def _add(
        self,
        name: str,
        category: str,
        thread: int,
        began: float,
        ended: float,
        args: dict[str, Any] | None = None,
        pid: int = 9,
    ) -> None:
        event = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": thread}
        times = {"ts": round(began, 3), "dur": round(ended - began, 3)}
        self.events.append({**event, **times, "args": args or {}})


def random_trace(folder: Path, seed: int, steps: int = 4) -> Path:
    """Write a random trace of a job with a device; return its path."""
    job = RandomJob(seed)
    job.steps(steps)
    path = folder / f"random_{seed}.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": job.events}))
    return path


def opened_late(path: Path, seed: int, *, launched_before: bool) -> Path:
    """Write what a recording has that begins within a trace; return where.

    Args:
        path: The whole trace.
        seed: The same seed begins it at the same time.
        launched_before: Whether the recording has work that was launched before it.
    """
    events = json.loads(path.read_text())["traceEvents"]
    chance = random.Random(seed)  # noqa: S311 - nothing is secret here
    begin = sorted(event["ts"] for event in events)[int(len(events) * chance.uniform(0.1, 0.6))]
    calls = {event["args"].get("correlation"): event for event in events
             if event["cat"] == "cuda_runtime"}  # fmt: skip
    kept = [event for event in events if event["ts"] >= begin]
    if not launched_before:
        calls = {number: call for number, call in calls.items() if call["ts"] < begin}
        kept = [event for event in kept
                if event["cat"] in ("cuda_runtime", "cuda_sync")
                or event["args"].get("correlation") not in calls]  # fmt: skip
    cut = path.with_name(f"late_{path.name}")
    cut.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": kept}))
    return cut

"""Random traces of a job whose modules run forward and backward on a device.

Modules nest; operators have shapes and sequence numbers, and their device work runs on one stream.
Backward runs on its own thread or on the same one. Sometimes a module is recomputed in it. Some
launches are not recorded.
"""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MAIN, ENGINE = 1, 2
_KERNELS = ("ampere_sgemm_32x32", "cutlass_80_tensorop_s1688gemm_64x64", "some_kernel")


class RandomModel:
    """Steps of a random tree of modules; times in us, three digits.

    Args:
        seed: The same seed gives the same trace.
        frames: Whether modules are Python frames; otherwise they are labels.

    Attributes:
        events: The trace's events.
    """

    def __init__(self, seed: int, *, frames: bool = True) -> None:
        self._random = random.Random(seed)  # noqa: S311 - nothing is secret here
        self._frames = frames
        self._now = 1000.0
        self._free = 0.0
        self._correlation = 0
        self._sequence = self._random.randint(0, 500)
        self._engine = self._random.choice((MAIN, ENGINE))
        self._made: list[tuple[int, tuple[int, int, int]]] = []
        self._names = 0
        self._tree = self._module(0)
        self.events: list[dict[str, Any]] = []

    def _module(self, depth: int) -> tuple[str, list[Any]]:
        self._names += 1
        inside = [
            self._module(depth + 1) for _ in range(self._random.randint(0, 3 if depth < 3 else 0))
        ]
        return f"Part_{self._names}", inside

    def steps(self, count: int) -> None:
        """Run steps."""
        for number in range(count):
            began = self._now
            self._made.clear()
            self._forward(self._tree, MAIN)
            self._linear(MAIN)  # the loss: in no module
            self._backward()
            self._operator("aten::_fused_adamw_", MAIN, {
                "Input Dims": [[[8, 4], [4]]] * 4, "Input type": ["TensorList"] * 4})  # fmt: skip
            self._add(f"ProfilerStep#{number}", "user_annotation", MAIN, began)

    def _forward(self, module: tuple[str, list[Any]], thread: int) -> None:
        began = self._now
        self._pass()
        for part in self._random.sample(module[1], len(module[1])):
            self._forward(part, thread)
            if self._random.random() < 0.6:
                self._linear(thread)
        if self._random.random() < 0.7:
            self._linear(thread)
        name, kind = (f"nn.Module: {module[0]}", "python_function")
        if not self._frames:
            name, kind = module[0], "user_annotation"
        self._add(name, kind, thread, began)
        self._pass()

    def _linear(self, thread: int) -> None:
        rows, inner, columns = (self._random.randint(1, 64) for _ in range(3))
        began, sequence = self._now, self._sequence
        kind = self._random.choice(("float", "c10::Half"))
        self._pass()
        self._operator("aten::t", thread, {"Sequence number": sequence})
        product = self._now
        self._operator("aten::copy_", thread, {
            "Input Dims": [[rows, columns], [rows, columns], []],
            "Input type": [kind, kind, "Scalar"]})  # fmt: skip
        self._launch(thread)
        self._memory(thread, rows * columns)
        told = {"Sequence number": sequence, "Fwd thread id": 0}
        shapes = {"Input Dims": [[columns], [rows, inner], [inner, columns], [], []],
                  "Input type": [kind] * 3 + ["Scalar"] * 2}  # fmt: skip
        self._add("aten::addmm", "cpu_op", thread, product, told | shapes)
        outer = {"Input Dims": [[rows, inner], [columns, inner], [columns]],
                 "Input type": [kind] * 3}  # fmt: skip
        self._add("aten::linear", "cpu_op", thread, began, told | outer)
        self._made.append((sequence, (rows, inner, columns)))
        self._sequence += 1

    def _backward(self) -> None:
        for sequence, (rows, inner, columns) in self._made[::-1]:
            began, told = self._now, {"Sequence number": sequence, "Fwd thread id": 1}
            if self._random.random() < 0.1:
                told = {}  # operators before the trace are unknown
            if self._random.random() < 0.1:
                made = len(self._made)
                self._forward(("Part_1", []), self._engine)
                del self._made[made:]
            self._pass()
            node = self._now
            self._product([[columns, rows], [rows, inner]])
            self._product([[rows, columns], [columns, inner]])
            self._add("AddmmBackward0", "cpu_op", self._engine, node, told)
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            self._add(name, "cpu_op", self._engine, began, told)
            began = self._now
            self._launch(self._engine)
            name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            self._add(name, "cpu_op", self._engine, began)
            self._pass()

    def _product(self, dims: list[list[int]]) -> None:
        self._operator("aten::mm", self._engine, {
            "Input Dims": dims, "Input type": ["float", "float"]})  # fmt: skip

    def _operator(self, name: str, thread: int, args: dict[str, Any]) -> None:
        began = self._now
        self._pass()
        for _ in range(self._random.randint(0, 2)):
            self._launch(thread)
        if self._random.random() < 0.5:
            self._memory(thread, self._random.randint(1, 5000))
        self._add(name, "cpu_op", thread, began, args)
        self._pass()

    def _memory(self, thread: int, size: int) -> None:
        sign = self._random.choice((1, 1, -1))
        self.events.append({"ph": "i", "name": "[memory]", "ts": self._now, "tid": thread, "pid": 9,
                            "args": {"Bytes": sign * size, "Addr": self._random.randint(1, 9),
                                     "Device Type": 0, "Device Id": -1}})  # fmt: skip
        self._pass()

    def _launch(self, thread: int) -> None:
        self._correlation += 1
        began, told = self._now, {"correlation": self._correlation, "External id": 0}
        self._pass()
        if self._random.random() < 0.95:
            self._add("cudaLaunchKernel", "cuda_runtime", thread, began, told)
        start = max(self._free, began + 1)
        self._free = round(start + self._random.randint(1, 30000) / 1000, 3)
        args = told | {"device": 0, "stream": 7, "grid": [2, 3, 1], "block": [32, 1, 1],
                       "registers per thread": 40, "est. achieved occupancy %": 50}  # fmt: skip
        copy = self._random.random() < 0.1
        name = "Memcpy HtoD (Pinned -> Device)" if copy else self._random.choice(_KERNELS)
        event = {"ph": "X", "name": name, "cat": "gpu_memcpy" if copy else "kernel", "pid": 0}
        times = {"tid": 7, "ts": round(start, 3), "dur": round(self._free - start, 3)}
        self.events.append({**event, **times, "args": args})

    def _pass(self) -> None:
        self._now = round(self._now + self._random.randint(1, 9000) / 1000, 3)

    def _add(
        self, name: str, category: str, thread: int, began: float,
        args: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        event = {"ph": "X", "name": name, "cat": category, "pid": 9, "tid": thread, "ts": began}
        self.events.append({**event, "dur": round(self._now - began, 3), "args": args or {}})


def random_model(folder: Path, seed: int, *, frames: bool = True, steps: int = 3) -> Path:
    """Write a random trace of modules on a device; return its path."""
    job = RandomModel(seed, frames=frames)
    job.steps(steps)
    path = folder / f"model_{seed}.trace.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 0, "traceEvents": job.events}))
    return path

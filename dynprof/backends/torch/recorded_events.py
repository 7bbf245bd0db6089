"""An estimate of the events that ``torch.profiler`` has recorded; torch does not report them.

Operators are counted: torch keeps them in blocks of 512, and its library exports the block counter.
Python calls are estimated from the memory that the allocator has given out. A call takes 24.6 bytes
in torch's lists; the operators' memory is subtracted. Where stacks are recorded, memory that the
training holds at the end of a step counts as calls too: 40,000 for each new 1 MB.

``python -m benchmarks.events`` measures the figures. docs/benchmarks.md has them, with the error
of the estimate.
"""

from __future__ import annotations

import ctypes
import functools
import time
from typing import Any

from dynprof.backends.base import Load
from dynprof.backends.torch.detached_close import library
from dynprof.runtime.memory import in_use_mb, resident_mb

_MB = 1e6
"""Bytes of a MB."""
_BLOCK = 512
"""Operators in a block of torch's recorder, as its symbol says."""
_BLOCKS = (
    "_ZZN5torch8profiler4impl19ThreadLocalSubqueue14TorchOpStorage"
    "10EventBlockINS1_21KinetoObserverContext5EventELm512EEC4EvE8counter_"
)
"""Symbol of the process's counter of operator blocks: the same name from torch 1.13 to 2.15."""
_OPERATOR_BYTES = {False: 226.0, True: 516.0}
"""Bytes of an operator while recording, without and with the shapes of its inputs."""
_CALL_BYTES = 24.6
"""Bytes of a Python call while recording."""
_ONCE_BYTES = 250_000.0
"""Bytes that torch, Python and dynprof allocate once in a window's first steps: 0.1 to 0.5 MB."""
_CALLS_A_SECOND = 1e7
"""Most calls an interpreter records in a second: growth beyond them is the training's."""
_OPERATOR_EVENTS = {False: 1.2, True: 1.6}
"""Events in the trace per operator, without and with memory: arrows to the backward pass, and
allocations."""
_OPERATOR_SAVING = {False: 1_600.0, True: 3_500.0}
"""Bytes of an operator while its events are collected, without and with shapes."""
_CALL_SAVING = 1_480.0
"""Bytes of a Python call while its events are collected."""
_ALLOCATIONS_SAVING = 1_300.0
"""Bytes of an operator's allocations while they are collected."""


class RecordedEvents:
    """The events of one recording, from its begin on.

    Args:
        profiler: A ``torch.profiler.profile`` that has just begun to record.
    """

    def __init__(self, profiler: Any) -> None:
        self._shapes, self._memory = bool(profiler.record_shapes), bool(profiler.profile_memory)
        self._blocks, self._calls = _blocks(), 0.0
        self._began_s = time.perf_counter()
        self._first_block = self._blocks.value if self._blocks else 0
        self._traces_calls = bool(profiler.with_stack) and self._blocks is not None
        self._in_use_mb = in_use_mb() if self._traces_calls else None
        self._resident_mb = resident_mb() if self._traces_calls else 0.0

    def load(self, *, inside_step: bool) -> Load | None:
        """Return the size so far; None where this build of torch has no block counter.

        Args:
            inside_step: Leave out the running step's calls: its tensors take memory as well.
        """
        if self._blocks is None:
            return None
        operators = (self._blocks.value - self._first_block) * _BLOCK
        if self._traces_calls and not inside_step:
            self._calls = self._estimated_calls(operators)
        saving = operators * _OPERATOR_SAVING[self._shapes] + self._calls * _CALL_SAVING
        saving += operators * _ALLOCATIONS_SAVING * self._memory
        events = operators * _OPERATOR_EVENTS[self._memory] + self._calls
        return Load(round(events), saving / _MB)

    def _estimated_calls(self, operators: int) -> float:
        rest = self._grown_mb(operators) * _MB - operators * _OPERATOR_BYTES[self._shapes]
        rest -= _ONCE_BYTES
        most = _CALLS_A_SECOND * (time.perf_counter() - self._began_s)
        return min(most, max(0.0, rest / _CALL_BYTES))

    def _grown_mb(self, operators: int) -> float:
        """Return the growth of allocated memory; of resident memory where that is unknown.

        It is unknown where reading it takes too long, or where another allocator replaces glibc's.
        """
        now_mb = in_use_mb()
        if now_mb is None or self._in_use_mb is None or (operators and now_mb == self._in_use_mb):
            return resident_mb() - self._resident_mb
        return now_mb - self._in_use_mb


def why_not_counted() -> str:
    """Return why events cannot be counted here; empty where they can."""
    return "" if _blocks() is not None else "this build of torch does not number its events"


@functools.cache
def _blocks() -> Any:
    try:
        return ctypes.c_uint64.in_dll(ctypes.CDLL(str(library())), _BLOCKS)
    except (OSError, ValueError):
        return None

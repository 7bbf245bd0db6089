"""How many blocks each kernel had: from its grid, or from that of its launch.

CUPTI writes the grid beside the kernel, ROCm's tracer beside the call that launched it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.reading.categories import KERNELS
from dynprof.analysis.reading.json_lists import listed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

_COUNT_THREADS = frozenset({"hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel"})
"""Calls of ROCm whose grid is counted in threads, not in blocks."""


def blocks(trace: Trace, started: Launches) -> Numbers:
    """Return how many blocks everything that a device did had; -1 where the trace has no grid.

    Args:
        trace: The trace.
        started: What devices did, and what started it.
    """
    spans, details = trace.spans, trace.tables["details"]
    of_grid = np.array([_product(directions(one.grid)) for one in details], np.int64)
    of_threads = np.array([_groups(one.grid, one.block) for one in details], np.int64)
    code = spans["details"]
    found = of_grid[code[started.work]]
    left = (found == UNKNOWN) & (started.call != UNKNOWN)
    left &= trace.category(KERNELS)[started.work]
    call = started.call[left]
    threads = trace.named(_COUNT_THREADS.__contains__)[call]
    found[left] = np.where(threads, of_threads[code[call]], of_grid[code[call]])
    return found


def directions(written: bytes) -> list[int]:
    """Return a grid's or a block's numbers, as Kineto writes them; empty where it has none."""
    found = listed(written)
    return found if all(type(one) is int and one > 0 for one in found) else []


def _product(numbers: list[int]) -> int:
    """Return the product; unknown where it has no meaning, or more digits than 64 bits hold."""
    found = prod(numbers) if numbers else UNKNOWN
    return found if found < 1 << 63 else UNKNOWN


def _groups(grid: bytes, block: bytes) -> int:
    """Return how many blocks there are, where the grid is counted in threads."""
    threads, size = directions(grid), directions(block)
    if len(threads) != len(size):
        return UNKNOWN
    return _product([-(-n // of) for n, of in zip(threads, size, strict=True)])

"""Number of blocks of each kernel, from its own grid or from that of its launch.

CUPTI writes the grid with the kernel, ROCm's tracer with the call that launched it.
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
    """Return the number of blocks of each device activity; -1 if the trace has no grid.

    Args:
        trace: The trace.
        started: Device activities and their launches.
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
    """Return the dimensions of a grid or block, as Kineto writes them; empty if it has none."""
    found = listed(written)
    return found if all(type(one) is int and one > 0 for one in found) else []


def _product(numbers: list[int]) -> int:
    """Return the product; -1 if there are no numbers or it does not fit into 64 bits."""
    found = prod(numbers) if numbers else UNKNOWN
    return found if found < 1 << 63 else UNKNOWN


def _groups(grid: bytes, block: bytes) -> int:
    """Return the number of blocks of a grid that is counted in threads."""
    threads, size = directions(grid), directions(block)
    if len(threads) != len(size):
        return UNKNOWN
    return _product([-(-n // of) for n, of in zip(threads, size, strict=True)])

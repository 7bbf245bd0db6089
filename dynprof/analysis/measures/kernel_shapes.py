"""How kernels were started: grid, blocks, registers, and how full the device was with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.tensor_cores import is_beside, on_tensor_cores
from dynprof.analysis.reading.categories import KERNELS
from dynprof.analysis.reading.events import NONE

if TYPE_CHECKING:
    from dynprof.analysis.reading.events import Details
    from dynprof.analysis.reading.trace import Trace


@dataclass(frozen=True)
class KernelShape:
    """All kernels of one name that were started alike; None where a trace does not tell.

    Attributes:
        name: The name.
        tensor_cores: Whether it computes on tensor cores.
        grid: Blocks in each direction; empty where a trace does not tell.
        block: Threads of a block in each direction, likewise.
        registers: Registers of a thread.
        shared_memory: Bytes that the threads of a block share.
        occupancy: Estimated: in percent of the warps that a processor can hold.
        count: How many ran.
        total: Their durations together, in ns.
    """

    name: str
    tensor_cores: bool | None
    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int | None
    shared_memory: int | None
    occupancy: float | None
    count: int
    total: int

    @property
    def blocks(self) -> int | None:
        """How many blocks there are in all."""
        return int(np.prod(self.grid, dtype=object)) if self.grid else None


def kernel_shapes(trace: Trace) -> list[KernelShape]:
    """Return a row for each way in which kernels of a name were started, most time first."""
    chosen = np.flatnonzero(trace.category(KERNELS))
    count = len(trace.tables["details"])
    key = trace.spans["name"][chosen] * count + trace.spans["details"][chosen]
    keys, row = np.unique(key, return_inverse=True)
    counts = np.bincount(row, minlength=len(keys)).tolist()
    totals = np.bincount(row, trace.spans["length"][chosen], len(keys)).tolist()
    names, told = trace.tables["name"], trace.tables["details"]
    rows = [
        _row(names[one // count], told[one % count], counts[number], int(totals[number]))
        for number, one in enumerate(keys.tolist())
    ]
    return sorted(rows, key=lambda row: (-row.total, row.name, row.grid, row.block))


def _row(name: str, told: Details, count: int, total: int) -> KernelShape:
    return KernelShape(
        name=name,
        tensor_cores=False if is_beside(name) else on_tensor_cores(name),
        grid=_sizes(told.grid),
        block=_sizes(told.block),
        registers=None if told.registers == NONE else told.registers,
        shared_memory=None if told.shared_memory == NONE else told.shared_memory,
        occupancy=None if told.occupancy == NONE else told.occupancy,
        count=count,
        total=total,
    )


def _sizes(said: bytes) -> tuple[int, ...]:
    try:
        found = json.loads(said or b"[]")
    except ValueError:
        return ()
    whole = isinstance(found, list) and all(isinstance(one, int) for one in found)
    return tuple(found) if whole else ()

"""How kernels were started: grid, blocks, registers, and how full the device was with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.efficiency.tensor_cores import on_tensor_cores
from dynprof.analysis.reading.categories import KERNELS
from dynprof.analysis.reading.events import NONE
from dynprof.analysis.reading.intervals import distinct
from dynprof.analysis.reading.json_lists import listed

if TYPE_CHECKING:
    from dynprof.analysis.reading.events import Details
    from dynprof.analysis.reading.trace import Trace

    _Start = tuple[tuple[int, ...], tuple[int, ...], int | None, int | None, float | None]


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
    alike: dict[_Start, int] = {}
    code = [alike.setdefault(_start(told), len(alike)) for told in trace.tables["details"]]
    starts, names = list(alike), trace.tables["name"]
    places = np.array(code or [0], np.int64)[trace.spans["details"][chosen]]
    key = trace.spans["name"][chosen] * max(1, len(starts)) + places
    keys, row = np.unique(key, return_inverse=True)
    counts = np.bincount(row, minlength=len(keys)).tolist()
    totals = np.bincount(row, trace.spans["length"][chosen], len(keys)).tolist()
    tensor = {name: on_tensor_cores(names[name]) for name in distinct(keys // len(starts)).tolist()}
    rows = []
    for number, one in enumerate(keys.tolist()):
        name = one // len(starts)
        grid, block, registers, shared, occupancy = starts[one % len(starts)]
        known = (tensor[name], grid, block, registers, shared, occupancy)
        rows.append(KernelShape(names[name], *known, counts[number], int(totals[number])))
    return sorted(rows, key=lambda row: (-row.total, row.name, row.grid, row.block))


def _start(told: Details) -> _Start:
    """Return grid, block, registers, shared memory and occupancy."""
    return (
        _sizes(told.grid),
        _sizes(told.block),
        None if told.registers == NONE else told.registers,
        None if told.shared_memory == NONE else told.shared_memory,
        None if told.occupancy == NONE else told.occupancy,
    )


def _sizes(said: bytes) -> tuple[int, ...]:
    found = listed(said)
    return tuple(found) if all(isinstance(one, int) for one in found) else ()

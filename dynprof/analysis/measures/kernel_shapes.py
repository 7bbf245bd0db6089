"""Launch configurations of kernels, their occupancy, and their use of tensor cores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.reading.events import KERNELS, NONE, listed
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.events import Details
    from dynprof.analysis.reading.trace import Trace

    _Start = tuple[tuple[int, ...], tuple[int, ...], int | None, int | None, float | None]
    Numbers = NDArray[np.int64]

_TENSOR_CORE_NAMES = (
    "tensorop", "wgmma", "hmma", "imma", "bmma", "dmma", "nvjet", "flash_fwd", "flash_bwd",
    "cudnn_generated_fort_native_sdpa",
)  # fmt: skip
_TENSOR_CORE_TILES = re.compile(
    r"_tensor\d+x\d+"
    r"|(?<=[a-z])(?:884|1688|16816|16832|8816)(?!\d)"  # the tile of one instruction
    r"|_mi\d+x\d+"  # Tensile, on AMD
)
_PLAIN_PRODUCTS = (
    "simt", "ffma", "scudnn", "winograd", "wgrad_alg0_engine", "dgrad_engine", "_sgemm", "_dgemm",
    ":sgemm", ":dgemm", "gemv", "gemmk1",
)  # fmt: skip
_AUXILIARY = (
    "elementwise", "reduce_kernel", "splitkreduce", "multi_tensor_apply", "softmaxforward",
    "softmaxbackward", "softmax_warp", "layer_norm", "layernorm", "batch_norm", "batchnorm",
    "group_norm", "groupnorm", "bn_fw", "bn_bw", "memcpy", "memset", "catarraybatchedcopy",
    "nchwtonhwc", "nhwctonchw", "epilogue::impl", "scalepackedtensor",
)  # fmt: skip
_FUSED = "triton_"
"""Prefix of fused kernels, whose names contain the names of all fused operators."""
_COUNT_THREADS = frozenset({"hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel"})
"""Calls of ROCm whose grid is counted in threads, not in blocks."""


@dataclass(frozen=True)
class KernelShape:
    """All kernels of one name and launch configuration; None if the trace does not tell.

    Attributes:
        name: The name.
        tensor_cores: Whether it computes on tensor cores.
        grid: Blocks in each dimension; empty if the trace does not tell.
        block: Threads of a block in each dimension; empty if the trace does not tell.
        registers: Registers of a thread.
        shared_memory: Bytes of shared memory of a block.
        occupancy: Estimated occupancy, in percent of the warps that a multiprocessor can hold.
        count: How many ran.
        total: The sum of their durations, in ns.
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
        """The number of blocks of the grid."""
        return int(np.prod(self.grid, dtype=object)) if self.grid else None


def kernel_shapes(trace: Trace) -> list[KernelShape]:
    """Return a row for each name and launch configuration of kernels, the most time first."""
    chosen = np.flatnonzero(trace.category(KERNELS))
    alike: dict[_Start, int] = {}
    code = [alike.setdefault(_start(details), len(alike)) for details in trace.tables["details"]]
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


def _start(details: Details) -> _Start:
    """Return grid, block, registers, shared memory and occupancy."""
    return (
        _sizes(details.grid),
        _sizes(details.block),
        None if details.registers == NONE else details.registers,
        None if details.shared_memory == NONE else details.shared_memory,
        None if details.occupancy == NONE else details.occupancy,
    )


def _sizes(written: bytes) -> tuple[int, ...]:
    found = listed(written)
    return tuple(found) if all(isinstance(one, int) for one in found) else ()


def on_tensor_cores(kernel: str) -> bool | None:
    """Return whether a kernel computes on tensor cores; None if its name does not tell.

    Args:
        kernel: Its name.
    """
    name = kernel.lower()
    if name.startswith(_FUSED):
        return None
    if _uses_tensor_cores(name):
        return True
    if (
        name.startswith(("cijk_", "sgemm", "dgemm"))
        or _any(_PLAIN_PRODUCTS, name)
        or is_auxiliary(kernel)
    ):
        return False
    return None


def is_auxiliary(kernel: str) -> bool:
    """Return whether a kernel is known not to be a product, such as a copy, a sum or a fill.

    Args:
        kernel: Its name.
    """
    name = kernel.lower()
    return not name.startswith(_FUSED) and _any(_AUXILIARY, name) and not _uses_tensor_cores(name)


def _uses_tensor_cores(name: str) -> bool:
    return _any(_TENSOR_CORE_NAMES, name) or bool(_TENSOR_CORE_TILES.search(name))


def _any(parts: tuple[str, ...], name: str) -> bool:
    return any(part in name for part in parts)


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


def launch_configurations(trace: Trace, started: Launches) -> Numbers:
    """Return the index of the details that have the grid and block of each device activity.

    ROCm writes them at the launch, CUDA at the kernel.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """
    code, call = trace.spans["details"], started.call
    own = code[started.work]
    written = np.array([bool(one.grid) for one in trace.tables["details"]], bool)[own]
    return np.where(written | (call == UNKNOWN), own, code[call])


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

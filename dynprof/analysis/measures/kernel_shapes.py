"""Kernels by operator, with their launch configuration, tensor cores and CUPTI counters.

CUPTI runs each kernel several times to count. Its events have no correlation id and made-up times,
but they are in the order of the launches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.kernels import CATEGORIES
from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost
from dynprof.analysis.measures.timeline.operators import is_step, shown_name
from dynprof.analysis.reading.events import KERNELS, LAUNCHES, NONE, listed
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Operators
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
_LAUNCH = re.compile(r"(?:cu|cuda|hip)(?:Module)?Launch(?:Cooperative)?Kernel")


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


@dataclass(frozen=True)
class OperatorKernel:
    """All device activities of one name that operators of one name and shapes launched.

    Times are in ns.

    Attributes:
        operator: The innermost operator or label around the launch; empty if unknown.
        dims: The shapes of its inputs, as Kineto writes them; empty if the trace does not tell.
        types: Their types, likewise.
        kernel: The name of the kernel, copy or memset.
        category: Its category.
        count: How many ran.
        total: The sum of their durations.
        shortest: The shortest.
        longest: The longest.
        deviation: The standard deviation of their durations, of all of them and not of a sample.
        stack: The number of the call stack that launched most of the time; 0 for none.
    """

    operator: str
    dims: bytes
    types: bytes
    kernel: str
    category: str
    count: int
    total: int
    shortest: int
    longest: int
    deviation: float
    stack: int


def operator_kernels(
    trace: Trace,
    found: Operators,
    started: Launches,
    launcher: Numbers,
    category: Numbers,
    stack: Numbers,
) -> list[OperatorKernel]:
    """Return a row for each operator, shapes and kernel, the most time first.

    Args:
        trace: The trace.
        found: Its operators.
        started: Device activities and their launches.
        launcher: For each activity the index of its operator; -1 if unknown.
        category: For each activity its category.
        stack: For each operator the number of its call stack.
    """
    names, work = trace.tables["name"], started.work
    if not len(work):
        return []
    steps = {code: shown_name(name) for code, name in enumerate(names) if is_step(name)}
    operator = np.append(trace.spans["name"][found.span], UNKNOWN)[launcher]
    for shown in set(steps.values()):
        same = [code for code, name in steps.items() if name == shown]
        operator[np.isin(operator, same)] = same[0]
    dims = np.append(trace.spans["dims"][found.span], UNKNOWN)[launcher]
    kernel, time = trace.spans["name"][work], trace.spans["length"][work]
    called = np.append(stack, 0)[launcher]
    row = np.zeros(len(work), np.int64)
    for column in (operator, dims, kernel, category):  # one by one, so that no key is too large
        row = np.unique(row * (int(column.max()) + 2) + column + 1, return_inverse=True)[1]
    order = np.lexsort((time, row))
    first = np.flatnonzero(np.append(True, np.diff(row[order]) > 0))
    count = np.diff(np.append(first, len(order)))
    total = np.add.reduceat(time[order], first)
    away = time[order] - np.repeat(total / count, count)
    deviation = np.sqrt(np.add.reduceat(away * away, first) / count)
    columns = (count, total, time[order[first]], time[order[first + count - 1]], deviation)
    stacks = _of_most_time(row, called, time)
    numbers = zip(*(column.tolist() for column in columns), stacks.tolist(), strict=True)
    rows = []
    for place, amounts in zip(order[first].tolist(), numbers, strict=True):
        by, shapes, types = "", b"", b""
        if launcher[place] != UNKNOWN:
            by, (shapes, types, *_) = names[operator[place]], trace.tables["dims"][dims[place]]
        made = (shown_name(by), shapes, types, names[kernel[place]], CATEGORIES[category[place]])
        rows.append(OperatorKernel(*made, *amounts))
    return sorted(rows, key=lambda one: (-one.total, one.operator, one.kernel, one.dims))


def _of_most_time(row: Numbers, called: Numbers, time: Numbers) -> Numbers:
    """Return for each row the number of the stack with the most time in it."""
    width = int(called.max()) + 1
    both, place = np.unique(row * width + called, return_inverse=True)
    spent = np.bincount(place, time, len(both))
    order = np.lexsort((spent, both // width))
    last = np.append(np.diff((both // width)[order]) > 0, True)
    found: Numbers = both[order[last]] % width
    return found


@dataclass(frozen=True)
class OperatorCounters:
    """The counters of all kernels of one name that operators of one name and shapes launched.

    Attributes:
        operator: The innermost operator or label around the launch; empty if unknown.
        dims: The shapes of its inputs, as Kineto writes them; empty if the trace does not tell.
        kernel: The name of the kernel, as CUPTI has it.
        count: How many ran.
        values: The sums of the counters that end in ``.sum``, and the means of all others.
    """

    operator: str
    dims: bytes
    kernel: str
    count: int
    values: dict[str, float]


def operator_counters(trace: Trace, found: Operators) -> list[OperatorCounters]:
    """Return a row for each operator, shapes and kernel, in the order of the first launch.

    Operators are unknown if there are not as many launches as kernels.

    Args:
        trace: The trace.
        found: Its operators.
    """
    calls = np.flatnonzero(
        trace.category(LAUNCHES) & trace.named(lambda name: bool(_LAUNCH.match(name)))
    )
    by = np.full(len(trace.counters), UNKNOWN, np.int64)
    if len(calls) == len(trace.counters):
        by = innermost(trace, found.span, found.parent, calls)
    rows = defaultdict[tuple[str, bytes, str], list[dict[str, float]]](list)
    for one, operator in zip(trace.counters, by.tolist(), strict=True):
        name, dims = "", b""
        if operator != UNKNOWN:
            span = int(found.span[operator])
            name, dims = trace.name(span), trace.tables["dims"][trace.spans["dims"][span]][0]
        rows[name, dims, one.kernel].append(one.values)
    return [OperatorCounters(*key, len(values), _together(values)) for key, values in rows.items()]


def _together(values: list[dict[str, float]]) -> dict[str, float]:
    """Return the sums of counters that add up, and the means of the others."""
    found = {}
    for name in dict.fromkeys(name for one in values for name in one):
        known = [one[name] for one in values if name in one]
        found[name] = sum(known) if name.endswith(".sum") else sum(known) / len(known)
    return found

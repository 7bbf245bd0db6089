"""Arithmetic and memory traffic of operators, and how close they came to the device's peaks."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dynprof.analysis.measures.formulas import SIZES, Inputs, operator_cost
from dynprof.analysis.measures.kernel_shapes import is_auxiliary, on_tensor_cores
from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by
from dynprof.analysis.reading.events import COPIES
from dynprof.analysis.reading.spans import ROOT
from dynprof.errors import CaptureError, reason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.formulas import OperatorCost
    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

HOST, DEVICE, LINK = "host", "device", "link"
"""Places of work: ``link`` is a copy that leaves a device. Empty if the trace does not tell."""
_PLACES = ("", HOST, DEVICE, LINK)
_STAYS = re.compile(r"DtoD|DeviceToDevice")
_DTYPE = re.compile(r"Functor<(double|float|c10::Half|c10::BFloat16)\b")
_NO_COST = -1
"""Index of an operator whose cost is unknown."""
COMPUTE, MEMORY = "compute", "memory"
"""The limit of an operator's speed."""
_MEMORY_ERROR = 0.05
"""Share of a device's memory that it may not report, as for error correction."""
VARIABLE = "DYNPROF_PEAKS"
"""The environment variable that names a file of more devices, in the form of ``peaks.json``."""
_OWN = Path(__file__).with_name("peaks.json")
_INFINITY = float("inf")
_HALVES = {"c10::Half": "float16", "c10::BFloat16": "bfloat16"}


@dataclass(frozen=True)
class OperatorCosts:
    """The operators whose work is known from their inputs, each piece of work once.

    Operators nested in one of them are a part of it.

    Attributes:
        place: Indices among the operators.
        code: Index of the work of each, in ``known``.
        known: The work of a call, once for each name with its inputs.
        inside: For each operator of the trace, its index in ``place``, or that of the one around
            it; -1 for none.
    """

    place: Numbers
    code: Numbers
    known: list[OperatorCost]
    inside: Numbers


@dataclass(frozen=True)
class OperatorWork:
    """All calls of one operator with the same inputs, in the same place.

    Attributes:
        name: The operator.
        dims: The shapes of its inputs, as Kineto writes them.
        types: Their types, as Kineto writes them.
        where: Where the work was done.
        count: Number of calls.
        host_ns: How long the host was in them.
        device_ns: How long devices worked for them.
        flops: Arithmetic operations of one call; None if the trace does not tell.
        moved: Bytes that one call has to read or write; None if the trace does not tell.
        dtype: Kineto's name of the type that it computes in; empty if the trace does not tell.
        is_product: Whether it is a matrix product, a convolution or attention.
        on_tensor_cores: The share of the time of its products on tensor cores; None if the
            kernels' names do not tell.
    """

    name: str
    dims: bytes
    types: bytes
    where: str
    count: int
    host_ns: int
    device_ns: int
    flops: int | None
    moved: int | None
    dtype: str
    is_product: bool
    on_tensor_cores: float | None

    @property
    def time_ns(self) -> int | None:
        """How long the work took; None if the trace does not tell."""
        if self.where == HOST:
            return self.host_ns
        return self.device_ns if self.where else None

    @property
    def tflops(self) -> float | None:
        """The arithmetic done in a second, in 10^12 operations; None if unknown."""
        if self.flops is None or not self.time_ns:
            return None
        return self.count * self.flops / self.time_ns / 1000

    @property
    def gb_s(self) -> float | None:
        """The memory traffic of a second, in 10^9 bytes; None if unknown."""
        if self.moved is None or not self.time_ns or self.where == LINK:
            return None
        return self.count * self.moved / self.time_ns


def operator_costs(trace: Trace, found: Operators) -> OperatorCosts:
    """Return the operators whose work is known from their inputs, and their work."""
    count = len(trace.tables["dims"])
    key = trace.spans["name"][found.span] * count + trace.spans["dims"][found.span]
    keys, code = np.unique(key, return_inverse=True)
    known: list[OperatorCost] = []
    place_of = np.full(len(keys), _NO_COST, np.int64)
    for number, one in enumerate(keys.tolist()):
        inputs = trace.tables["dims"][one % count]
        if inputs[0] and (
            taken := operator_cost(trace.tables["name"][one // count], Inputs(*inputs))
        ):
            place_of[number] = len(known)
            known.append(taken)
    kinds = np.array([one.kind for one in known] + [_NO_COST], np.int64)
    codes = place_of[code]
    counted, inside = _counted(kinds[codes], found.parent)
    return OperatorCosts(counted, codes[counted], known, inside)


def _counted(kind: Numbers, parent: Numbers) -> tuple[Numbers, Numbers]:
    """Return the operators that count, and for each operator the one that it is or is inside of.

    The innermost operator of the heaviest kind counts: for ``linear`` it is the ``addmm`` in it,
    and a copy inside belongs to the ``addmm``.

    Args:
        kind: How heavy the work of each is; -1 if it is unknown.
        parent: The parent of each.
    """
    above = _nearest(kind >= 0, parent)
    heaviest = np.full(len(kind), -1, np.int64)
    levels = _levels(np.flatnonzero(kind >= 0), above)
    for level in reversed(levels[1:]):
        np.maximum.at(heaviest, above[level], np.maximum(heaviest[level], kind[level]))
    counts, covered = kind > heaviest, np.zeros(len(kind), bool)
    for level in levels[1:]:
        covered[level] = covered[above[level]] | counts[above[level]]
        counts[level] &= ~covered[level]
    place = np.flatnonzero(counts)
    number = np.full(len(kind) + 1, ROOT, np.int64)
    number[place] = np.arange(len(place))
    inside: Numbers = number[np.where(counts, np.arange(len(kind)), _nearest(counts, parent))]
    return place, inside


def _nearest(wanted: NDArray[np.bool_], parent: Numbers) -> Numbers:
    """Return the index of the nearest wanted ancestor of each; -1 for none."""
    above: Numbers = parent.copy()
    going = np.flatnonzero(above != ROOT)
    while len(going := going[~wanted[above[going]]]):
        above[going] = parent[above[going]]
        going = going[above[going] != ROOT]
    return above


def _levels(chosen: Numbers, above: Numbers) -> list[Numbers]:
    """Return the chosen operators grouped by nesting depth among them."""
    depth = np.zeros(len(chosen), np.int64)
    outer = above[chosen]
    while (inside := outer != ROOT).any():
        depth += inside
        outer = np.where(inside, above[outer], ROOT)
    return [chosen[depth == level] for level in range(int(depth.max(initial=-1)) + 1)]


def operator_work(
    trace: Trace, found: Operators, started: Launches, taken: OperatorCosts
) -> list[OperatorWork]:
    """Return the work of operators and the time it took, the longest first.

    Args:
        trace: The trace.
        found: Its operators.
        started: Device activities and their launches.
        taken: The work of the operators.
    """
    if not len(taken.place):
        return []
    span, count = found.span[taken.place], len(taken.place)
    by = launched_by(trace, started, found.span, found.parent)
    of = np.where(by == UNKNOWN, ROOT, taken.inside[by])
    selected, owner = started.work[of != ROOT], of[of != ROOT]
    times = trace.spans["length"][selected]
    device = np.bincount(owner, times, count).astype(np.int64)
    lost = ((started.call == UNKNOWN) & (by == UNKNOWN)).any()
    launched = np.bincount(owner, minlength=count) > 0
    place = np.where(launched, _PLACES.index(DEVICE), _PLACES.index("" if lost else HOST))
    copies = trace.category(COPIES) & ~trace.named(lambda name: bool(_STAYS.search(name)))
    place[owner[copies[selected]]] = _PLACES.index(LINK)
    key = taken.code * len(_PLACES) + place
    keys, first, row = np.unique(key, return_index=True, return_inverse=True)
    sums = [
        np.bincount(row, weights, len(keys)).astype(np.int64).tolist()
        for weights in (np.ones(count), found.total_ns[taken.place], device)
    ]
    tensor = _on_tensor_cores(trace, selected, row[owner], len(keys))
    dtypes = _dtypes(trace, selected, row[owner])
    rows = []
    for number, one in enumerate(first.tolist()):
        cost = taken.known[taken.code[one]]
        dims, types, *_ = trace.tables["dims"][trace.spans["dims"][span[one]]]
        dtype = cost.dtype or (dtypes.get(number, "") if cost.elements else "")
        row_of = OperatorWork(
            name=trace.name(int(span[one])),
            dims=dims,
            types=types,
            where=_PLACES[place[one]],
            count=sums[0][number],
            host_ns=sums[1][number],
            device_ns=sums[2][number],
            flops=cost.flops,
            moved=_moved(cost, dtype),
            dtype=dtype,
            is_product=cost.is_product,
            on_tensor_cores=tensor[number],
        )
        rows.append(row_of)
    return sorted(rows, key=lambda work: (-(work.time_ns or 0), work.name, work.dims))


def _moved(cost: OperatorCost, dtype: str) -> int | None:
    """Return the bytes of a call, including lists of tensors if their type is known."""
    if cost.moved is None or not cost.elements:
        return cost.moved
    return cost.moved + cost.elements * SIZES[dtype] if dtype else None


def _on_tensor_cores(trace: Trace, kernels: Numbers, row: Numbers, rows: int) -> list[float | None]:
    """Return for each row the share of its products' time that ran on tensor cores."""
    names, code = np.unique(trace.spans["name"][kernels], return_inverse=True)
    uses_cores = [on_tensor_cores(trace.tables["name"][name]) for name in names.tolist()]
    known = np.array([-1 if uses is None else int(uses) for uses in uses_cores], np.int64)[code]
    times = trace.spans["length"][kernels]
    product = np.array(
        [not is_auxiliary(trace.tables["name"][name]) for name in names.tolist()], bool
    )
    whole, using, unclear = (
        np.bincount(row[chosen], times[chosen], rows).tolist()
        for chosen in (product[code], known == 1, product[code] & (known < 0))
    )
    return [
        None if not all_ or unknown else used / all_
        for all_, used, unknown in zip(whole, using, unclear, strict=True)
    ]


def _dtypes(trace: Trace, kernels: Numbers, row: Numbers) -> dict[int, str]:
    """Return for each row the type in its kernels' names, if all have the same."""
    found: dict[int, set[str]] = {}
    names = trace.spans["name"][kernels]
    pairs = np.unique(np.stack([row, names]), axis=1)
    for number, name in zip(*pairs.tolist(), strict=True):
        match = _DTYPE.search(trace.tables["name"][name])
        found.setdefault(number, set()).add(match[1] if match else "")
    return {number: types.pop() for number, types in found.items() if len(types) == 1}


@dataclass(frozen=True)
class RooflinePoint:
    """An operator's work, compared with the peaks of the device that did it.

    Attributes:
        peak_tflops: The device's peak for the type and the units used; None if unknown.
        bound: Whether arithmetic or memory takes longer at the device's peaks; empty if unknown.
        share: Time at the device's peaks, as a share of the time taken; None if unknown.
    """

    peak_tflops: float | None
    bound: str
    share: float | None


def roofline_point(work: OperatorWork, peak: Peak | None) -> RooflinePoint:
    """Return an operator's work compared with the peaks of the device.

    Args:
        work: The work.
        peak: The peaks of the device; None if unknown.
    """
    if peak is None or work.where != DEVICE or not work.time_ns or work.moved is None:
        return RooflinePoint(None, "", None)
    moving = work.count * work.moved / peak.gb_s
    if not work.is_product:
        return RooflinePoint(None, MEMORY, moving / work.time_ns)
    kind = peak_kind(work, peak)
    if kind is None or work.flops is None:
        return RooflinePoint(None, "", None)
    most = peak.tflops[kind]
    computing = work.count * work.flops / most / 1000
    bound = COMPUTE if computing >= moving else MEMORY
    return RooflinePoint(most, bound, max(computing, moving) / work.time_ns)


def peak_kind(work: OperatorWork, peak: Peak) -> str | None:
    """Return the peak of a device that applies to a product; None if unknown.

    For 8-bit and 16-bit types it is the peak of the matrix units, whether used or not. For
    ``float`` it is the peak of the units used, which depend on a setting of the job.
    """
    if work.dtype.startswith("c10::Float8"):
        return _if_known("float8", peak)
    if work.dtype in _HALVES:
        return _if_known(_HALVES[work.dtype], peak)
    plain, matrix = {
        "float": ("float32", "tf32"),
        "double": ("float64", "float64 matrix"),
    }.get(work.dtype, ("", ""))
    if matrix not in peak.tflops:
        return _if_known(plain, peak)
    if work.on_tensor_cores is None:
        return None
    return matrix if work.on_tensor_cores > 0 else _if_known(plain, peak)


def _if_known(kind: str, peak: Peak) -> str | None:
    return kind if kind in peak.tflops else None


class Peak(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The peaks of a kind of device.

    Attributes:
        names: The names that such devices report.
        gb_s: Memory bandwidth, in 10^9 bytes a second.
        tflops: Arithmetic without sparsity by type, in 10^12 operations a second. ``float16``,
            ``bfloat16``, ``float8``, ``tf32`` and ``float64 matrix`` are of the matrix units,
            ``float32`` and ``float64`` of the other units.
        source: Where the figures are published.
        memory_gib: Memory that tells devices of one name apart; 0 if the name is enough.
    """

    names: tuple[str, ...]
    gb_s: float
    tflops: dict[str, float]
    source: str
    memory_gib: float = 0

    def is_of(self, device: str, memory: int) -> bool:
        """Return whether these are the peaks of a device with a name and bytes of memory."""
        difference = abs(memory / 2**30 - self.memory_gib)
        fits = not self.memory_gib or difference <= _MEMORY_ERROR * self.memory_gib
        return device in self.names and fits


def peak_of(device: str, memory: int = 0) -> Peak | None:
    """Return the peaks of a device; None if no table has it.

    Args:
        device: The name that it reports.
        memory: The bytes of its memory; 0 if unknown.

    Raises:
        CaptureError: The user's own table cannot be read.
    """
    named = os.environ.get(VARIABLE)
    tables = [Path(named)] if named else []
    for table in (*tables, _OWN):
        for peak in _read(table):
            if peak.is_of(device, memory):
                return peak
    return None


def _read(table: Path) -> list[Peak]:
    try:
        found = msgspec.json.decode(table.read_bytes(), type=list[Peak])
    except (OSError, msgspec.MsgspecError) as error:
        raise CaptureError(
            f"{table}, which {VARIABLE} names, cannot be used: {reason(error)}"
        ) from error
    for peak in found:
        if not peak.names or not all(
            0 < one < _INFINITY for one in (peak.gb_s, *peak.tflops.values())
        ):
            raise CaptureError(f"{table}: a device has no name, or a peak that is not above 0")
    return found

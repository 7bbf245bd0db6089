"""Tables that the vendor does not have: modules, backward passes, operators' work, kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.analysis.measures.efficiency.flops import DEVICE
from dynprof.analysis.measures.efficiency.roofline import placed
from dynprof.analysis.measures.timeline.nesting import ROOT
from dynprof.analysis.output.tables import UNKNOWN_TIME, shapes_text, us

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.analysis.measures.code.modules import Amounts
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.output.tables import Row, Tables

MODULE_DETAILS = (
    "Module", "Level", "Calls",
    *(f"{phase}{amount} {whose}{unit}"
      for phase in ("", "Backward ")
      for amount, unit in (("Host", " Duration(us)"), ("Device", " Duration(us)"),
                           ("Allocated", "(KB)"), ("FLOPs", ""))
      for whose in ("Self", "Total")),
)  # fmt: skip
OPERATOR_FLOPS = (
    "Name", "Input Shapes", "Input Types", "Where", "Count", "Host Total Duration(us)",
    "Device Total Duration(us)", "FLOPs Of One", "Bytes Of One", "TFLOP/s", "GB/s",
    "FLOPs Per Byte", "Peak TFLOP/s", "Peak GB/s", "Bound", "Of Roofline(%)", "Tensor Cores(%)",
)  # fmt: skip
BACKWARD_OPERATORS = (
    "Forward Operator", "Backward", "Count", "Host Self Duration(us)", "Device Duration(us)",
)  # fmt: skip
KERNEL_SHAPES = (
    "Name", "Tensor Cores", "Grid", "Block", "Blocks", "Registers Per Thread",
    "Shared Memory(B)", "Estimated Occupancy(%)", "Count", "Total Time(us)", "Avg Time(us)",
)  # fmt: skip
OUTSIDE, UNKNOWN = "(in none of these)", "(launch not recorded)"
NOT_TOLD = "(not known)"
_KB = 1024


def own_tables(measured: MeasuredTrace) -> Tables:
    """Return what there is to say of modules, of operators' work, and of kernels' shapes."""
    return {
        "module_details.csv": (MODULE_DETAILS, _module_details(measured)),
        "operator_flops.csv": (OPERATOR_FLOPS, _operator_flops(measured)),
        "backward_operators.csv": (BACKWARD_OPERATORS, _backward_operators(measured)),
        "kernel_shapes.csv": (KERNEL_SHAPES, _kernel_shapes(measured)),
    }


def _module_details(measured: MeasuredTrace) -> Iterator[Row]:
    found = measured.modules
    paths: list[str] = []
    levels: list[int] = []
    for row in found.rows:
        inside = row.parent != ROOT
        paths.append(f"{paths[row.parent]}/{row.name}" if inside else row.name)
        levels.append(levels[row.parent] + 1 if inside else 0)
        forward = _amounts(row.forward, row.forward_total, flops=found.with_flops)
        backward = _amounts(row.backward, row.backward_total, flops=found.with_flops)
        yield paths[-1], levels[-1], row.calls, *forward, *backward
    if found.rows:
        rest = _amounts(found.outside, found.outside, flops=found.with_flops)
        nothing = ("",) * len(rest)
        yield OUTSIDE, "", "", "", "", *rest[2:], *nothing
        unknown = us(found.device_unknown)
        yield UNKNOWN, "", "", "", "", unknown, unknown, *nothing[4:], *nothing


def _amounts(own: Amounts, total: Amounts, *, flops: bool) -> tuple[str, ...]:
    """Return what was spent, own and in all, as the columns of a phase have it."""
    counts = (str(own.flops), str(total.flops)) if flops else (UNKNOWN_TIME, UNKNOWN_TIME)
    memory = (str(own.allocated / _KB), str(total.allocated / _KB))
    return us(own.host), us(total.host), us(own.device), us(total.device), *memory, *counts


def _operator_flops(measured: MeasuredTrace) -> Iterator[Row]:
    peak = measured.peak
    for work in measured.works:
        place = placed(work, peak)
        yield (
            work.name,
            shapes_text(work.dims),
            shapes_text(work.types),
            work.where or UNKNOWN_TIME,
            work.count,
            us(work.host_ns),
            us(work.device_ns),
            _known(work.flops),
            _known(work.moved),
            _digits(work.tflops),
            _digits(work.gb_s),
            _digits(work.flops / work.moved if work.flops and work.moved else None),
            _known(place.peak_tflops),
            _known(peak.gb_s if peak and work.where == DEVICE else None),
            place.bound or UNKNOWN_TIME,
            _percent(place.share),
            _percent(work.on_tensor_cores),
        )


def _backward_operators(measured: MeasuredTrace) -> Iterator[Row]:
    for one in measured.passes:
        yield one.operator or NOT_TOLD, one.node, one.count, us(one.host), us(one.device)


def _kernel_shapes(measured: MeasuredTrace) -> Iterator[Row]:
    for shape in measured.kernel_shapes:
        tensor = {None: UNKNOWN_TIME, True: "yes", False: "no"}[shape.tensor_cores]
        yield (
            shape.name,
            tensor,
            "x".join(map(str, shape.grid)),
            "x".join(map(str, shape.block)),
            _known(shape.blocks),
            _known(shape.registers),
            _known(shape.shared_memory),
            _known(shape.occupancy),
            shape.count,
            us(shape.total),
            us(round(shape.total / shape.count)),
        )


def _known(value: float | None) -> str:
    return UNKNOWN_TIME if value is None else str(value)


def _digits(value: float | None) -> str:
    return UNKNOWN_TIME if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return UNKNOWN_TIME if share is None else f"{100 * share:.1f}"

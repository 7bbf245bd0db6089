"""Tables that the vendor lacks, such as modules, kernels, iterations and critical paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.critical_path import PARTS, PHASES
from dynprof.analysis.measures.flops import DEVICE, roofline_point
from dynprof.analysis.measures.sequence_sources import joined_names, sources
from dynprof.analysis.measures.sequences import MAX_SEQUENCES
from dynprof.analysis.output.tables import UNKNOWN_TIME, shapes_text, us
from dynprof.analysis.reading.spans import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynprof.analysis.measures.critical_path import CriticalPath
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.modules import Amounts
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
KERNEL_CATEGORIES = ("Device_id", "Category", "Count", "Total Time(us)", "Ratio(%)")
OPERATOR_KERNELS = (
    "Operator", "Input Shapes", "Input Types", "Kernel", "Category", "Count", "Total Time(us)",
    "Avg Time(us)", "Min Time(us)", "Max Time(us)", "Standard Deviation(us)", "Call Stack",
)  # fmt: skip
CRITICAL_PATH = ("Step", "Part", "Phase", "Name", "Count", "Time(us)", "Ratio(%)")
WHAT_IF = (
    "What", "On Path(us)", "Step(us)", "Step If It Cost Nothing(us)", "Saving(%)",
)  # fmt: skip
ITERATIONS = (
    "Iteration", "Kind", "Requests", "Tokens", "Start Time(us)", "Time(us)", "On the Host(us)",
    "Device Busy(us)", "Tokens Per Second",
)  # fmt: skip
KERNEL_SEQUENCES = (
    "Operators", "Source Line", "Count", "Kernels in Each", "Kernel Time(us)",
    "Gaps Between(us)", "Kernel Time Saved at Most(us)", "Kernels",
)  # fmt: skip
OUTSIDE, UNKNOWN = "(in none of these)", "(launch not recorded)"
NOT_TOLD = "(not known)"
_KB = 1024
"""Bytes of a KB, as in the vendor's tables."""


def own_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of modules, operators, kernels and iterations."""
    return {
        "module_details.csv": (MODULE_DETAILS, _module_details(measured)),
        "operator_flops.csv": (OPERATOR_FLOPS, _operator_flops(measured)),
        "backward_operators.csv": (BACKWARD_OPERATORS, _backward_operators(measured)),
        "kernel_shapes.csv": (KERNEL_SHAPES, _kernel_shapes(measured)),
        "kernel_categories.csv": (KERNEL_CATEGORIES, _kernel_categories(measured)),
        "operator_kernels.csv": (OPERATOR_KERNELS, _operator_kernels(measured)),
        "operator_counters.csv": _operator_counters(measured),
        "iterations.csv": (ITERATIONS, _iterations(measured)),
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
    """Return own and total amounts in the order of the columns of a phase."""
    counts = (_known(one.known_flops if flops else None) for one in (own, total))
    memory = (str(own.allocated / _KB), str(total.allocated / _KB))
    return us(own.host), us(total.host), us(own.device), us(total.device), *memory, *counts


def _operator_flops(measured: MeasuredTrace) -> Iterator[Row]:
    peak = measured.peak
    for work in measured.works:
        place = roofline_point(work, peak)
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


def _kernel_categories(measured: MeasuredTrace) -> Iterator[Row]:
    for one in measured.categories:
        yield one.device, one.category, one.count, us(one.total), f"{one.ratio:.3f}"


def _operator_kernels(measured: MeasuredTrace) -> Iterator[Row]:
    for one in measured.operator_kernels:
        yield (
            one.operator or UNKNOWN,
            shapes_text(one.dims),
            shapes_text(one.types),
            one.kernel,
            one.category,
            one.count,
            us(one.total),
            us(round(one.total / one.count)),
            us(one.shortest),
            us(one.longest),
            us(round(one.deviation)),
            measured.call_stacks.text(one.stack),
        )


def _operator_counters(measured: MeasuredTrace) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return header and rows; the header has the counters that were recorded."""
    found = measured.operator_counters
    names = tuple(dict.fromkeys(name for one in found for name in one.values))
    rows = (
        (
            one.operator or UNKNOWN,
            shapes_text(one.dims),
            one.kernel,
            one.count,
            *(one.values.get(name, UNKNOWN_TIME) for name in names),
        )
        for one in found
    )
    return ("Operator", "Input Shapes", "Kernel", "Count", *names), rows


def _iterations(measured: MeasuredTrace) -> Iterator[Row]:
    for one in measured.iteration_times.values():
        yield (
            one.number,
            one.label.kind,
            _known(one.label.requests),
            _known(one.label.tokens),
            us(measured.base_ns + one.begin),
            us(one.time),
            us(one.on_host),
            UNKNOWN_TIME if one.busy is None else us(one.busy),
            _digits(one.tokens_per_second),
        )


def _known(value: float | None) -> str:
    return UNKNOWN_TIME if value is None else str(value)


def _digits(value: float | None) -> str:
    return UNKNOWN_TIME if value is None else f"{value:.4g}"


def _percent(share: float | None) -> str:
    return UNKNOWN_TIME if share is None else f"{100 * share:.1f}"


def path_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of the critical path."""
    path = measured.critical_path
    if path is None:
        return {}
    return {
        "critical_path.csv": (CRITICAL_PATH, _parts(path, measured.trace.tables["name"])),
        "critical_path_what_if.csv": (WHAT_IF, _what_ifs(path)),
    }


def _parts(path: CriticalPath, names: list[str]) -> Iterator[Row]:
    """Yield a row for each part of each step, the longest first; their sum is the step."""
    times, lengths = path.times, path.lengths.tolist()
    order = np.lexsort((-times.time, times.step))
    columns = (times.step, times.part, times.phase, times.name, times.count, times.time)
    for step, part, phase, name, count, time in zip(
        *(column[order].tolist() for column in columns), strict=True
    ):
        number = path.steps[step][0]
        yield (
            "" if number is None else number,
            PARTS[part],
            PHASES[phase] if phase >= 0 else "",
            names[name] if name >= 0 else "",
            count,
            us(time),
            f"{100 * time / max(1, lengths[step]):.3f}",
        )


def _what_ifs(path: CriticalPath) -> Iterator[Row]:
    for one in path.what_ifs:
        saved = 100 * (1 - one.step / path.length) if path.length else 0.0
        times = (one.on_path, path.length, one.step)
        yield (one.what, *(us(round(time)) for time in times), f"{saved:.3f}")


def sequence_tables(measured: MeasuredTrace) -> Tables:
    """Return a row for each sequence, the largest possible saving first; times in us."""
    return {"kernel_sequences.csv": (KERNEL_SEQUENCES, _rows(measured))}


def _rows(measured: MeasuredTrace) -> Iterator[Row]:
    chosen = measured.sequences[:MAX_SEQUENCES]
    for one, source in zip(chosen, sources(measured, chosen), strict=True):
        busy, gaps = us(int(one.busy_ns.sum())), us(int(one.gaps_ns.sum()))
        yield (
            joined_names(source.operators),
            source.line,
            one.count,
            len(one.names),
            busy,
            gaps,
            us(one.saved_ns),
            joined_names(one.names),
        )

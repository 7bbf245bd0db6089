"""The vendor's csv tables: file names and headers are those of its ``ASCEND_PROFILER_OUTPUT``.

Times are in microseconds with three digits, exactly the nanoseconds of the trace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.kernels import core_of, waits
from dynprof.analysis.memory import device_label
from dynprof.analysis.operators import LABELS, ON_DEVICE, STEP
from dynprof.layout import private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.analysis.capture import Capture

OPERATOR_DETAILS = (
    "Name", "Input Shapes", "Call Stack", "Host Self Duration(us)", "Host Total Duration(us)",
    "Device Self Duration(us)", "Device Total Duration(us)",
    "Device Self Duration With AICore(us)", "Device Total Duration With AICore(us)",
)  # fmt: skip
KERNEL_DETAILS = (
    "Device_id", "Name", "Type", "Accelerator Core", "Start Time(us)", "Duration(us)",
    "Wait Time(us)", "Block Num",
)  # fmt: skip
OP_STATISTIC = (
    "Device_id", "OP Type", "Core Type", "Count", "Total Time(us)", "Min Time(us)",
    "Avg Time(us)", "Max Time(us)", "Ratio(%)",
)  # fmt: skip
STEP_TRACE_TIME = (
    "Device_id", "Step", "Computing", "Communication(Not Overlapped)", "Overlapped",
    "Communication", "Free", "Stage", "Bubble",
    "Communication(Not Overlapped and Exclude Receive)", "Preparing",
)  # fmt: skip
MEMORY_RECORD = (
    "Component", "Timestamp(us)", "Total Allocated(MB)", "Total Reserved(MB)",
    "Total Active(MB)", "Stream Ptr", "Device Type",
)  # fmt: skip
OPERATOR_MEMORY = (
    "Name", "Size(KB)", "Allocation Time(us)", "Release Time(us)", "Active Release Time(us)",
    "Duration(us)", "Active Duration(us)", "Allocation Total Allocated(MB)",
    "Allocation Total Reserved(MB)", "Allocation Total Active(MB)",
    "Release Total Allocated(MB)", "Release Total Reserved(MB)", "Release Total Active(MB)",
    "Stream Ptr", "Device Type",
)  # fmt: skip
COMPONENT = "PTA"
"""What the vendor calls torch's own allocator."""
_MOST_CELLS = 50_000
_KB, _MB = 1024, 1024 * 1024

Row = tuple[Any, ...]
Tables = dict[str, tuple[tuple[str, ...], Iterable[Row]]]
"""Header and rows of each file."""


def us(nanoseconds: int) -> str:
    """Return a time in microseconds, exactly."""
    if abs(nanoseconds) < 1 << 50:  # so far a float has more digits than are shown
        return f"{nanoseconds / 1000:.3f}"
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def operator_tables(capture: Capture) -> Tables:
    """Return what there is to say of operators, kernels and steps."""
    return {
        "operator_details.csv": (OPERATOR_DETAILS, _operator_details(capture)),
        "kernel_details.csv": (KERNEL_DETAILS, _kernel_details(capture)),
        "op_statistic.csv": (OP_STATISTIC, _op_statistic(capture)),
        "step_trace_time.csv": (STEP_TRACE_TIME, _step_trace_time(capture)),
    }


def memory_tables(capture: Capture) -> Tables:
    """Return what there is to say of memory."""
    return {
        "memory_record.csv": (MEMORY_RECORD, _memory_record(capture)),
        "operator_memory.csv": (OPERATOR_MEMORY, _operator_memory(capture)),
    }


def write_tables(tables: Tables, folder: Path) -> Iterator[Path]:
    """Write the tables that have something to say; yield their paths."""
    for name, (header, rows) in tables.items():
        path = folder / name
        if _write(path, header, rows):
            yield path


def _write(path: Path, header: tuple[str, ...], rows: Iterable[Row]) -> bool:
    """Write a table unless it is empty; return whether it was written."""
    ahead = iter(rows)
    first = next(ahead, None)
    if first is None:
        return False
    with open(path, "w", encoding="utf-8", newline="", opener=private) as file:
        file.write(f"{','.join(header)}\r\n")
        quote = _Quoted()
        for row in chain([first], ahead):
            file.write(f"{','.join([quote[cell] for cell in row])}\r\n")
    return True


class _Quoted(dict[Any, str]):
    """Cells as csv has them; each kept, for names and stacks come again and again."""

    def __missing__(self, cell: Any) -> str:
        text = str(cell)
        if any(mark in text for mark in ',"\r\n'):
            text = '"' + text.replace('"', '""') + '"'
        if len(self) < _MOST_CELLS:
            self[cell] = text
        return text


def _operator_details(capture: Capture) -> Iterator[Row]:
    trace, found = capture.trace, capture.operators
    names, dims = trace.tables["name"], [shapes for shapes, _ in trace.tables["dims"]]
    shown = [shapes_text(text) for text in dims]
    stacks = capture.call_stacks
    marked = trace.category(LABELS)[found.span]
    columns = (
        trace.spans["name"][found.span], trace.spans["dims"][found.span], marked, found.own,
        found.total, found.device_own, found.device_total,
    )  # fmt: skip
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for place, (name, shape, is_label, own, total, device_own, device_total) in enumerate(rows):
        if is_label and names[name].startswith(STEP):
            continue
        device = (us(device_own), us(device_total))
        yield (names[name], shown[shape], stacks(place), us(own), us(total), *device, *device)


def shapes_text(dims: bytes) -> str:
    """Return shapes as the vendor writes them, ``4,5;5,6``, from Kineto's ``[[4, 5], [5, 6]]``."""
    try:
        shapes = json.loads(dims or b"[]")
    except ValueError:
        return dims.decode(errors="replace")
    return ";".join(_shape_text(shape) for shape in shapes)


def _shape_text(shape: Any) -> str:
    if not isinstance(shape, list):
        return str(shape)
    nested = bool(shape) and isinstance(shape[0], list)
    return (";" if nested else ",").join(_shape_text(part) for part in shape)


def _kernel_details(capture: Capture) -> Iterator[Row]:
    trace = capture.trace
    chosen = np.flatnonzero(trace.category(*ON_DEVICE))
    names, categories = trace.tables["name"], trace.tables["category"]
    columns = (
        *(trace.spans[c][chosen] for c in ("device", "name", "category", "start", "length")),
    )
    rows = zip(*(column.tolist() for column in (*columns, waits(trace, chosen))), strict=True)
    for device, name, category, start, length, wait in rows:
        core = core_of(categories[category], names[name])
        moment = us(capture.base_ns + start)
        yield device, names[name], names[name], core, moment, us(length), us(wait), 0


def _op_statistic(capture: Capture) -> Iterator[Row]:
    device = capture.first_device
    for kind in capture.kinds:
        average = us(round(kind.total / kind.count))
        times = (us(kind.total), us(kind.shortest), average, us(kind.longest))
        yield device, kind.name, kind.core, kind.count, *times, f"{kind.ratio:.3f}"


def _step_trace_time(capture: Capture) -> Iterator[Row]:
    for step in capture.steps:
        alone = us(step.communication - step.overlapped)
        yield (
            step.device_id,
            "" if step.number is None else step.number,
            us(step.computing),
            alone,
            us(step.overlapped),
            us(step.communication),
            us(step.free),
            us(step.stage),
            us(0),
            alone,
            us(step.preparing),
        )


def _memory_record(capture: Capture) -> Iterator[Row]:
    memory = capture.trace.memory
    columns = ("time", "total", "reserved", "device_type", "device_id")
    rows = zip(*(memory[name].tolist() for name in columns), strict=True)
    for time, total, reserved, kind, number in rows:
        moment, device = us(capture.base_ns + time), device_label(kind, number).upper()
        yield COMPONENT, moment, total / _MB, reserved / _MB, total / _MB, "", device


def _operator_memory(capture: Capture) -> Iterator[Row]:
    for made in capture.allocations:
        released = [""] * 2
        after: list[Any] = [""] * 3
        if made.released is not None:
            released = [us(capture.base_ns + made.released), us(made.released - made.allocated)]
            total, reserved = made.total_after or 0, made.reserved_after or 0
            after = [total / _MB, reserved / _MB, total / _MB]
        yield (
            made.operator,
            made.size / _KB,
            us(capture.base_ns + made.allocated),
            released[0],
            released[0],
            released[1],
            released[1],
            made.total_then / _MB,
            made.reserved_then / _MB,
            made.total_then / _MB,
            *after,
            "",
            made.device.upper(),
        )

"""The vendor's csv tables, with the file names and headers of its ``ASCEND_PROFILER_OUTPUT``.

Times are in microseconds with three digits, which are exactly the nanoseconds of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dynprof.analysis.measures.kernel_shapes import blocks
from dynprof.analysis.measures.marks import CROSSING, KINDS
from dynprof.analysis.measures.memory import device_label
from dynprof.analysis.measures.timeline.kernels import cores, kinds, waits
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.timeline.operators import is_step
from dynprof.analysis.measures.timeline.steps import HOST_NAME
from dynprof.analysis.reading.events import LABELS, LAUNCHES, ON_DEVICE
from dynprof.analysis.reading.spans import distinct
from dynprof.runtime.output import atomic_text_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.timeline.steps import Step

LEVELS = ("Level_none", "Level0", "Level1", "Level2")
"""Levels, each of which includes those before it."""
LEVELLED = {
    "kernel_details.csv": "Level0",
    "step_trace_time.csv": "Level0",
    "op_statistic.csv": "Level0",
    "analysis.db": "Level0",
    "communication.json": "Level1",
    "communication_matrix.json": "Level1",
    "api_statistic.csv": "Level1",
}
"""The lowest level at which a file is written. Other files are always written."""
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
UNKNOWN_TIME = "N/A"
"""The vendor's text for an unknown time or number."""
COMPONENT = "PTA"
"""The vendor's name for torch's own allocator."""
_KB, _MB = 1024, 1024 * 1024
"""Bytes of a KB and a MB in the vendor's tables."""
_AT_ONCE = 1000
"""Rows that are written at once."""
_QUOTED = re.compile('[,"\r\n]').search
_FORMULA = re.compile("[\t\r]|\\s*[=+\\-@\uff1d\uff0b\uff0d\uff20]").match
"""Matches the start of cells that spreadsheets run as formulas; a trace may have any names.

Some spreadsheets ignore white space before a sign, and accept full-width signs."""
_NUMBER = re.compile(r"[-+]?\d+(\.\d*)?([eE][-+]?\d+)?").fullmatch

Row = tuple[Any, ...]
Tables = dict[str, tuple[tuple[str, ...], Iterable[Row]]]
"""Header and rows of each file."""
API_STATISTIC = (
    "Device_id", "Level", "API Name", "Time(us)", "Count", "Avg(us)", "Min(us)", "Max(us)",
    "Variance",
)  # fmt: skip
MSPROF_TX = (
    "pid", "tid", "category", "event_type", "payload_type", "payload_value", "Start_time(us)",
    "End_time(us)", "message_type", "message", "domain", "mark_id",
)  # fmt: skip
ACL, RUNTIME = "acl", "runtime"
"""The vendor's names for the calls that a framework makes, and for the layer below them."""


def level_of(measured: MeasuredTrace) -> str:
    """Return the level that a trace was recorded with; the highest one without a manifest."""
    config = measured.manifest.request.config if measured.manifest else {}
    inner = config.get("experimental_config")
    default = "Level0" if measured.manifest else LEVELS[-1]
    said = inner.get("profiler_level", default) if isinstance(inner, dict) else default
    return said if said in LEVELS else default


def includes(measured: MeasuredTrace, level: str) -> bool:
    """Return whether a trace's level includes another one."""
    return LEVELS.index(level_of(measured)) >= LEVELS.index(level)


def is_written(measured: MeasuredTrace, name: str) -> bool:
    """Return whether a trace's level has a file."""
    return name not in LEVELLED or includes(measured, LEVELLED[name])


def why_not(measured: MeasuredTrace, name: str) -> str:
    """Return why a trace's level leaves a file out; empty if it does not."""
    if is_written(measured, name):
        return ""
    return why_not_at(measured, LEVELLED[name])


def why_not_at(measured: MeasuredTrace, level: str) -> str:
    """Return the reason for the absence of a file that needs a higher level."""
    return f"profiler_level is {level_of(measured)}; {level} has it"


def us(nanoseconds: int) -> str:
    """Return a time in microseconds, exactly."""
    if abs(nanoseconds) < 1 << 50:  # up to here a float has more digits than the text
        return f"{nanoseconds / 1000:.3f}"
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def operator_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of operators, kernels and steps that the trace's level has."""
    found: Tables = {
        "operator_details.csv": (OPERATOR_DETAILS, _operator_details(measured)),
        "kernel_details.csv": (KERNEL_DETAILS, _kernel_details(measured)),
        "op_statistic.csv": (OP_STATISTIC, _op_statistic(measured)),
        "step_trace_time.csv": (STEP_TRACE_TIME, _step_trace_time(measured)),
    }
    return {name: table for name, table in found.items() if is_written(measured, name)}


def memory_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of memory."""
    return {
        "memory_record.csv": (MEMORY_RECORD, _memory_record(measured)),
        "operator_memory.csv": (OPERATOR_MEMORY, _operator_memory(measured)),
    }


def write_tables(tables: Tables, folder: Path) -> Iterator[Path]:
    """Write the tables that are not empty; yield their paths."""
    for name, (header, rows) in tables.items():
        path = folder / name
        if _write(path, header, rows):
            yield path


def _write(path: Path, header: tuple[str, ...], rows: Iterable[Row]) -> bool:
    """Write a table unless it is empty; return whether it was written."""
    ahead = iter(rows if isinstance(rows, TextRows) else (tuple(map(cell, row)) for row in rows))
    first = next(ahead, None)
    if first is None:
        return False
    with atomic_text_file(path) as file:
        every = chain([header, first], ahead)
        while some := list(islice(every, _AT_ONCE)):
            file.write("\r\n".join(map(",".join, some)) + "\r\n")
    return True


class TextRows:
    """Rows of csv cells, made column by column, which is faster for long tables."""

    def __init__(self, columns: Iterable[Sequence[str]]) -> None:
        self._rows = zip(*columns, strict=True)

    def __iter__(self) -> Iterator[Row]:
        return self._rows


def _column(numbers: NDArray[np.int64], text: Callable[[int], str]) -> list[str]:
    """Return a column's numbers as text; each distinct number is formatted once."""
    values, places = np.unique(numbers, return_inverse=True)
    made = np.empty(len(values), object)
    made[:] = [text(value) for value in values.tolist()]
    found: list[str] = made[places].tolist()
    return found


def _operator_details(measured: MeasuredTrace) -> TextRows:
    trace, found = measured.trace, measured.operators
    names, dims = trace.tables["name"], trace.tables["dims"]
    kept = without_steps(measured)
    chosen, stacks = found.span[kept], measured.call_stacks
    unknown = found.device_unknown and not found.device_own.any()
    text = us if not unknown else lambda _: UNKNOWN_TIME
    device = [_column(times[kept], text) for times in (found.device_own, found.device_total)]
    return TextRows(
        (
            _column(trace.spans["name"][chosen], lambda code: cell(names[code])),
            _column(trace.spans["dims"][chosen], lambda code: cell(shapes_text(dims[code][0]))),
            _column(stacks.number[kept], lambda number: cell(stacks.text(number))),
            _column(found.own[kept], us),
            _column(found.total[kept], us),
            *device,
            *device,
        )
    )


def without_steps(measured: MeasuredTrace) -> NDArray[np.intp]:
    """Return the numbers of the operators that are not the labels of steps."""
    trace = measured.trace
    steps = trace.category(LABELS) & trace.named(is_step)
    return np.flatnonzero(~steps[measured.operators.span])


def shapes_text(dims: bytes) -> str:
    """Return shapes in the vendor's form, ``4,5;5,6``, from Kineto's ``[[4, 5], [5, 6]]``."""
    try:
        shapes = msgspec.json.decode(dims or b"[]")
        if isinstance(shapes, list):
            return ";".join(_shape_text(shape) for shape in shapes)
    except (ValueError, RecursionError):  # no shapes, or lists nested too deep
        pass
    return dims.decode(errors="replace")


def _shape_text(shape: Any) -> str:
    if not isinstance(shape, list):
        return str(shape)
    nested = bool(shape) and isinstance(shape[0], list)
    return (";" if nested else ",").join(_shape_text(part) for part in shape)


def _kernel_details(measured: MeasuredTrace) -> TextRows:
    trace, chosen = measured.trace, measured.launches.work
    names, name = trace.tables["name"], trace.spans["name"][chosen]
    count = blocks(trace, measured.launches)
    named = _column(name, lambda code: cell(names[code]))
    return TextRows(
        (
            _column(trace.spans["device"][chosen], str),
            named,
            named,
            cores(trace, chosen),
            [us(measured.base_ns + start) for start in trace.spans["start"][chosen].tolist()],
            _column(trace.spans["length"][chosen], us),
            _column(waits(trace, chosen), us),
            _column(count, lambda n: UNKNOWN_TIME if n == UNKNOWN else str(n)),
        )
    )


def _op_statistic(measured: MeasuredTrace) -> Iterator[Row]:
    trace, device_of = measured.trace, measured.trace.spans["device"]
    several = distinct(device_of[trace.category(ON_DEVICE)]).tolist()
    found = {measured.first_device: measured.kinds}
    if len(several) > 1:
        found = {one: kinds(trace, measured.operators, device_of == one) for one in several}
    for device, kind in ((device, kind) for device, those in found.items() for kind in those):
        average = us(round(kind.total / kind.count))
        times = (us(kind.total), us(kind.shortest), average, us(kind.longest))
        yield device, kind.name, kind.core, kind.count, *times, f"{kind.ratio:.3f}"


def _step_trace_time(measured: MeasuredTrace) -> Iterator[Row]:
    for step in measured.steps:
        alone = step.communication - step.overlapped
        stage, bubble, without = _received(step, alone)
        yield (
            step.device_id,
            "" if step.number is None else step.number,
            us(step.computing),
            us(alone),
            us(step.overlapped),
            us(step.communication),
            us(step.free),
            stage,
            bubble,
            without,
            us(step.preparing),
        )


def _received(step: Step, alone: int) -> tuple[str, str, str]:
    """Return the stage without receiving, the bubble, and the communication without receiving."""
    if step.receiving is None:
        return (UNKNOWN_TIME,) * 3
    bubble = step.receiving
    return us(step.stage - bubble), us(bubble), us(max(alone - bubble, 0))


def _memory_record(measured: MeasuredTrace) -> TextRows:
    memory, count = measured.trace.memory, len(measured.trace.memory["time"])
    total, reserved = (_column(memory[name], _mb) for name in ("total", "reserved"))
    both = list(zip(memory["device_type"].tolist(), memory["device_id"].tolist(), strict=True))
    device = {pair: cell(device_label(*pair).upper()) for pair in set(both)}
    return TextRows(
        (
            [COMPONENT] * count,
            _column(measured.base_ns + memory["time"], us),
            total,
            reserved,
            total,
            [""] * count,
            [device[pair] for pair in both],
        )
    )


def _mb(size: int) -> str:
    return str(size / _MB)


def _operator_memory(measured: MeasuredTrace) -> TextRows:
    base, made = measured.base_ns, measured.allocations
    released = ["" if one.released is None else us(base + one.released) for one in made]
    lasted = ["" if one.released is None else us(one.released - one.allocated) for one in made]
    total, reserved = _mbs(one.total_then for one in made), _mbs(one.reserved_then for one in made)
    after = _mbs(one.total_after for one in made)
    return TextRows(
        (
            list(map(cache(cell), (one.operator for one in made))),
            [str(one.size / _KB) for one in made],
            [us(base + one.allocated) for one in made],
            released,
            released,
            lasted,
            lasted,
            total,
            reserved,
            total,
            after,
            _mbs(one.reserved_after for one in made),
            after,
            [""] * len(made),
            list(map(cache(lambda device: cell(device.upper())), (one.device for one in made))),
        )
    )


def _mbs(sizes: Iterable[int | None]) -> list[str]:
    text = cache(_mb)
    return ["" if size is None else text(size) for size in sizes]


def cell(value: object) -> str:
    """Return the csv cell for a value; an apostrophe keeps a spreadsheet from running it."""
    text = str(value)
    if _FORMULA(text) and not _NUMBER(text):
        text = f"'{text}"
    if _QUOTED(text):
        return '"' + text.replace('"', '""') + '"'
    return text


def host_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of calls and marks."""
    return {
        "api_statistic.csv": (API_STATISTIC, _api_statistic(measured)),
        "msprof_tx.csv": (MSPROF_TX, _mark_rows(measured)),
    }


def layer(category: str) -> str:
    """Return the vendor's name for a layer of calls: drivers are below runtimes."""
    return RUNTIME if category.lower().endswith("driver") else ACL


def calls_of(measured: MeasuredTrace) -> NDArray[np.int64]:
    """Return the calls that a trace's level has: runtimes' from Level1, drivers' from Level2."""
    trace = measured.trace
    names = LAUNCHES if includes(measured, "Level1") else frozenset[str]()
    if not includes(measured, "Level2"):
        names = frozenset(name for name in names if layer(name) == ACL)
    return np.flatnonzero(trace.category(names))


def _api_statistic(measured: MeasuredTrace) -> list[Row]:
    """Return a row for each name, the most time first; the variance is in us squared."""
    trace, chosen = measured.trace, calls_of(measured)
    categories = trace.tables["category"]
    key = trace.spans["name"][chosen] * len(categories) + trace.spans["category"][chosen]
    keys, places = np.unique(key, return_inverse=True)
    lengths = trace.spans["length"][chosen]
    totals = []
    for number, one in enumerate(keys.tolist()):
        times = lengths[places == number]
        name, category = divmod(one, len(categories))
        totals.append((int(times.sum()), trace.tables["name"][name], categories[category], times))
    totals.sort(key=lambda row: (-row[0], row[1]))
    return [
        (
            HOST_NAME,
            layer(category),
            name,
            us(total),
            len(times),
            us(round(total / len(times))),
            us(int(times.min())),
            us(int(times.max())),
            f"{np.var(times / 1000):.3f}",
        )
        for total, name, category, times in totals
    ]


def _mark_rows(measured: MeasuredTrace) -> Iterator[Row]:
    """Yield a row for each mark. Columns that the vendor reserves for later are empty here too."""
    trace, found, base = measured.trace, measured.marks, measured.base_ns
    columns = (trace.spans[name][found.span].tolist() for name in ("start", "length", "thread"))
    rows = zip(found.span.tolist(), found.kind.tolist(), found.domain, found.range_id, *columns,
               strict=True)  # fmt: skip
    for place, kind, domain, number, start, length, thread in rows:
        pid, tid = trace.tables["thread"][thread]
        begin, end = us(base + start), us(base + start + length)
        number = number if kind == CROSSING else ""
        name = trace.name(place)
        yield pid, tid, "", KINDS[kind], "", "", begin, end, "", name, domain, number

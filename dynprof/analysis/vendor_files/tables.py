"""Tables in csv: the vendor's, and those that it lacks, such as modules and critical paths.

The vendor's have the file names and headers of its ``ASCEND_PROFILER_OUTPUT``; its
``profiler_level`` leaves some out. Times are in microseconds with three digits, which are exactly
the nanoseconds of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from dynprof.analysis.measures.critical_path import PARTS, PHASES
from dynprof.analysis.measures.flops import DEVICE, roofline_point
from dynprof.analysis.measures.kernel_shapes import blocks
from dynprof.analysis.measures.marks import CROSSING, KINDS
from dynprof.analysis.measures.memory import device_label
from dynprof.analysis.measures.sequence_sources import joined_names, sources
from dynprof.analysis.measures.sequences import MAX_SEQUENCES
from dynprof.analysis.measures.timeline.kernels import cores, kinds, waits
from dynprof.analysis.measures.timeline.launches import UNKNOWN
from dynprof.analysis.measures.timeline.operators import is_step
from dynprof.analysis.measures.timeline.steps import HOST_NAME
from dynprof.analysis.reading.events import LABELS, LAUNCHES, ON_DEVICE
from dynprof.analysis.reading.spans import ROOT, distinct
from dynprof.runtime.safe_write import atomic_text_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from dynprof.analysis.measures.critical_path import CriticalPath
    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.modules import Amounts
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
OUTSIDE, NO_LAUNCH = "(in none of these)", "(launch not recorded)"
NOT_TOLD = "(not known)"


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
    unknown = found.device_unknown and not found.device_self_ns.any()
    text = us if not unknown else lambda _: UNKNOWN_TIME
    device = [_column(times[kept], text) for times in (found.device_self_ns, found.device_total_ns)]
    return TextRows(
        (
            _column(trace.spans["name"][chosen], lambda code: cell(names[code])),
            _column(trace.spans["dims"][chosen], lambda code: cell(shapes_text(dims[code][0]))),
            _column(stacks.number[kept], lambda number: cell(stacks.text(number))),
            _column(found.self_ns[kept], us),
            _column(found.total_ns[kept], us),
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
    if isinstance(value, int | float):
        return text
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
        yield NO_LAUNCH, "", "", "", "", unknown, unknown, *nothing[4:], *nothing


def _amounts(alone: Amounts, total: Amounts, *, flops: bool) -> tuple[str, ...]:
    """Return self and total amounts in the order of the columns of a phase."""
    counts = (_known(one.known_flops if flops else None) for one in (alone, total))
    memory = (str(alone.allocated / _KB), str(total.allocated / _KB))
    return us(alone.host), us(total.host), us(alone.device), us(total.device), *memory, *counts


def _operator_flops(measured: MeasuredTrace) -> Iterator[Row]:
    peak = measured.peak
    for work in measured.operator_work:
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
            one.operator or NO_LAUNCH,
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
            one.operator or NO_LAUNCH,
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

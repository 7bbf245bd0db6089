"""The tables that SQL reads: columns, types, units, meaning, and how a trace fills them.

``start`` and ``stop`` are for reading and comparing: they are cut to whole microseconds.
``start_ns`` and ``duration_ns`` are exact.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynprof.analysis.measures.idle import CAUSES, Idle
from dynprof.analysis.measures.idle import KINDS as IDLE_KINDS
from dynprof.analysis.measures.kernel_shapes import (
    blocks,
    directions,
    launch_configurations,
    on_tensor_cores,
)
from dynprof.analysis.measures.queue import queue
from dynprof.analysis.measures.timeline.kernels import CATEGORIES, cores, waits
from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost, launched_by, open_at
from dynprof.analysis.measures.user_code import (
    SEPARATOR,
    code_at,
    open_at_start,
    place_of,
    user_frames,
)
from dynprof.analysis.rank_comparison.parquet import (
    FOLDER,
    connection,
    copy,
    parquet_file,
    steps_of,
    write_events,
)
from dynprof.analysis.reading.events import KERNELS as KERNEL_CATEGORIES
from dynprof.analysis.reading.events import OPERATORS as OPERATOR_CATEGORIES
from dynprof.analysis.reading.spans import ROOT, distinct, span_at
from dynprof.analysis.vendor_files.json_files import make_output_folder
from dynprof.analysis.vendor_files.tables import shapes_text, without_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace

    Numbers = NDArray[np.int64]

EVENTS, OPERATORS, KERNELS, LAUNCHES = "events", "operators", "kernels", "launches"
IDLE, MEMORY, COLLECTIVES, STEPS = "idle", "memory", "collectives", "steps"
RANKS, WINDOWS = "ranks", "windows"
TEXT, WHOLE, REAL, BOOLEAN, TIME = "VARCHAR", "BIGINT", "DOUBLE", "BOOLEAN", "TIMESTAMP"
NS, BYTES = "ns", "bytes"
_OPERATOR = "the innermost operator or label of the host"
_DEFINED = "line 22 has its `def`; none if it was entered before the steps, or is a module"
_UNTIL = "`start` plus the duration"
_FRAMES_BETWEEN = "; "
"""Separator of the frames of a stack."""


class Column(NamedTuple):
    """A column of a view.

    Attributes:
        name: The name, which needs no quotes in SQL.
        type: DuckDB's type.
        meaning: What it holds, for the page; and when it is NULL.
        unit: The unit; empty for a name, a count or a flag.
    """

    name: str
    type: str
    meaning: str
    unit: str = ""


class View(NamedTuple):
    """A view.

    Attributes:
        meaning: What a row is, for the page.
        columns: The columns, in order.
    """

    meaning: str
    columns: tuple[Column, ...]

    @property
    def declared(self) -> str:
        """The columns for ``CREATE TABLE``."""
        return ", ".join(f"{column.name} {column.type}" for column in self.columns)


_WINDOW = Column(
    "window_name",
    TEXT,
    "folder of the window, below the path that was given; of several paths, the path",
)
_RANK = Column("rank", WHOLE, "rank that recorded it")
_ID = Column("id", WHOLE, "number of the event in its trace; the other views use the same")
_STEP = Column("step", WHOLE, "step of the job; device work counts where it was launched; NULL "
               "outside of the marked steps")  # fmt: skip
_TIMES = (
    Column("start", TIME, "start, UTC", "us"),
    Column("stop", TIME, f"end, UTC: {_UNTIL}", "us"),
    Column("start_ns", WHOLE, "start, since 1970", NS),
    Column("duration_ns", WHOLE, "duration", NS),
)
_THREAD = (
    Column("pid", TEXT, "process, as the trace names it"),
    Column("tid", TEXT, "thread, as the trace names it"),
)
_CODE = (
    Column("line", TEXT, "innermost frame of your own code at its start, such as `train.py:22 "
           f"(main)`: {_DEFINED}; NULL without stacks"),
    Column("stack", TEXT, "Python frames around the operator, innermost first, separated by `; `; "
           "NULL without stacks"),
)  # fmt: skip
_BY = (
    Column("operator", TEXT, f"{_OPERATOR} that launched it; NULL if unknown"),
    Column("operator_id", WHOLE, "`operators.id` of it"),
)
_EVENT = (_WINDOW, _RANK, _STEP, _ID, *_TIMES)

VIEWS: dict[str, View] = {
    EVENTS: View(
        "Every span and mark of a trace. Allocations are in `memory`.",
        (
            *_EVENT,
            Column("name", TEXT, "name"),
            Column("category", TEXT, "category in the trace, such as `cpu_op` or `kernel`"),
            *_THREAD,
            Column("device", WHOLE, "device; NULL on the host"),
            Column("stream", WHOLE, "stream; NULL on the host"),
            Column("correlation", WHOLE, "number that device work shares with its launch"),
            Column("external_id", WHOLE, "Kineto's number of an operator"),
            Column("sequence", WHOLE, "autograd's number, which forward and backward share"),
            Column("domain", TEXT, "domain of a mark"),
            Column("mark", TEXT, "kind of a mark"),
        ),
    ),
    OPERATORS: View(
        "Each run of an operator, label or call on the host, without the labels of steps. An "
        "operator that only repeats the one around it is left out, as in torch's tables.",
        (
            *_EVENT,
            Column("name", TEXT, "name"),
            Column("category", TEXT, "category in the trace: `cpu_op`, `user_annotation`, ..."),
            Column("self_ns", WHOLE, "duration without operators inside it", NS),
            Column("device_self_ns", WHOLE, "device work that it launched itself; NULL if the "
                   "trace has no launches", NS),
            Column("device_ns", WHOLE, "the same with operators inside it", NS),
            Column("parent_id", WHOLE, "`operators.id` of the operator around it; NULL for none"),
            Column("shapes", TEXT, "shapes of its inputs, such as `4,5;5,6`; NULL without shapes"),
            Column("types", TEXT, "types of its inputs, separated by `;`"),
            *_THREAD,
            *_CODE,
        ),
    ),
    KERNELS: View(
        "Each kernel, copy and memset on a device.",
        (
            *_EVENT,
            Column("name", TEXT, "name"),
            Column("kind", TEXT, "`KERNEL`, `COMMUNICATION`, `MEMCPY` or `MEMSET`"),
            Column("category", TEXT, "what it computes: `GEMM`, `attention`, `elementwise` ..."),
            Column("device", WHOLE, "device"),
            Column("stream", WHOLE, "stream"),
            Column("grid", TEXT, "blocks of the grid, such as `108,1,1`; NULL if not recorded"),
            Column("block", TEXT, "threads of a block, such as `256,1,1`"),
            Column("blocks", WHOLE, "number of blocks"),
            Column("registers", WHOLE, "registers of a thread"),
            Column("shared_memory", WHOLE, "shared memory of a block", BYTES),
            Column("occupancy", REAL, "estimated occupancy of the multiprocessors", "%"),
            Column("tensor_cores", BOOLEAN, "computes on tensor cores; NULL if the name does not "
                   "tell"),
            Column("bytes", WHOLE, "size of a copy or memset; NULL for kernels", BYTES),
            Column("queued_ns", WHOLE, "time from the end of its launch to its start; NULL if the "
                   "launch is unknown", NS),
            Column("idle_before_ns", WHOLE, "how long its stream was idle before it", NS),
            Column("launch_id", WHOLE, "`launches.id` of its launch; NULL if unknown"),
            *_BY,
            Column("shapes", TEXT, "shapes of the inputs of that operator"),
            *_CODE,
        ),
    ),
    LAUNCHES: View(
        "Each call of the device's runtime or driver that launched device work.",
        (
            *_EVENT,
            Column("name", TEXT, "name, such as `cudaLaunchKernel`"),
            *_THREAD,
            Column("activities", WHOLE, "number of kernels, copies and memsets; many for a graph"),
            Column("device_ns", WHOLE, "their durations together", NS),
            Column("queued_ns", WHOLE, "time from its end to the start of the first of them", NS),
            *_BY,
            *_CODE,
        ),
    ),
    IDLE: View(
        "Gaps within the steps in which a device ran nothing: the first that worked. A piece of a "
        "gap has one cause, one operator and one line of the host. "
        "[Why the device was idle](analysis.md#why-the-device-was-idle) explains kinds and causes. "
        "Empty if no device worked.",
        (
            *(column for column in _EVENT if column is not _ID),
            Column("device", WHOLE, "device"),
            Column("gap", WHOLE, "number of the gap on this rank; its pieces share it"),
            Column("kind", TEXT, "`host blocked`, `host late`, `queued`, `nothing to do` or "
                   "`unknown`"),
            Column("cause", TEXT, "cause, such as `data loading` or `launching`"),
            Column("call", TEXT, "call that made the host wait for the device; NULL for none. In a "
                   "piece of kind `host late` it has ended, and the host launches again"),
            Column("host_operator", TEXT, "operator that your code called, or label, during it on "
                   "the thread that launches next"),
            Column("line", TEXT, "innermost frame of your own code on that thread, as for "
                   "operators; NULL without stacks"),
        ),
    ),
    MEMORY: View(
        "Each allocation of tensor memory, until its release. Needs `profile_memory`. "
        "`stop` and `duration_ns` are NULL if it was not released within the trace.",
        (
            *(column for column in _EVENT if column is not _ID),
            Column("bytes", WHOLE, "size", BYTES),
            Column("device", TEXT, "device, such as `cpu` or `cuda:0`"),
            Column("allocated_bytes", WHOLE, "all that was allocated on the device then", BYTES),
            Column("reserved_bytes", WHOLE, "all that the allocator had reserved then", BYTES),
            Column("operator", TEXT, "innermost operator that allocated it; NULL for none"),
            Column("operator_id", WHOLE, "`operators.id` of it"),
            *_CODE,
        ),
    ),
    COLLECTIVES: View(
        "Each collective or message: the kernel, or without a device the host's label.",
        (
            *_EVENT,
            Column("name", TEXT, "name; `send and receive` for both ends of a message"),
            Column("kind", TEXT, "kind, such as `all reduce`; NULL if unknown"),
            Column("process_group", TEXT, "process group, as the trace names it"),
            Column("number", WHOLE, "number in its group on this rank, from 0"),
            Column("bytes", WHOLE, "size as nccl-tests counts it; NULL if unknown", BYTES),
            Column("members", WHOLE, "number of ranks that took part; NULL if unknown"),
            Column("bus_gb_s", REAL, "bus bandwidth, with the wait for other ranks; NULL if "
                   "unknown", "GB/s"),
            Column("sender", WHOLE, "rank that sent a message; NULL if unknown"),
            Column("receiver", WHOLE, "rank that received a message; NULL if unknown"),
            Column("late_ns", WHOLE, "how long after the median rank this rank began it, on "
                   "aligned clocks; negative if before; NULL if ranks cannot be compared", NS),
            Column("is_last", BOOLEAN, "this rank came last, by more than 1 ms and more than the "
                   "uncertainty of the clocks; NULL if ranks cannot be compared"),
        ),
    ),
    STEPS: View(
        "Each step on each device, or on the host if no device worked. Without marked steps, one "
        "row for the whole trace. Its device work is what it launched, which may run long after "
        "its label on the host.",
        (
            _WINDOW,
            _RANK,
            Column("step", WHOLE, "step of the job, or iteration of an inference server; NULL if "
                   "neither is marked"),
            Column("kind", TEXT, "kind of the iteration, such as `prefill`, `decode` or `mixed`; "
                   "NULL for a step"),
            Column("requests", WHOLE, "its requests, the batch size; NULL if unknown"),
            Column("tokens", WHOLE, "its tokens that go through the model; NULL if unknown"),
            *_TIMES[:3],
            Column("duration_ns", WHOLE, "from start to end of the step's label on the host", NS),
            Column("took_ns", WHOLE, "[how long it takes](analysis.md#how-long-a-step-takes) in "
                   "the report; NULL if the device is behind and did nothing for it", NS),
            Column("recording_ns", WHOLE, "of that, the work of the profiler itself; 0 if unknown, "
                   "as without stacks", NS),
            Column("device", TEXT, "device, or `host`"),
            Column("computing_ns", WHOLE, "time in which its kernels computed, also after its "
                   "label; on the host, operators", NS),
            Column("communication_ns", WHOLE, "time in which its collectives ran", NS),
            Column("overlapped_ns", WHOLE, "time in which both did", NS),
            Column("free_ns", WHOLE, "time in which neither did, within `stage_ns`", NS),
            Column("stage_ns", WHOLE, "span on the device: from the start of its first kernel or "
                   "collective to the end of the last", NS),
            Column("preparing_ns", WHOLE, "from the start of the label to that of its first kernel "
                   "or collective", NS),
            Column("receiving_ns", WHOLE, "when messages were received; NULL if unknown", NS),
            Column("data_loading_ns", WHOLE, "phases of the host: loading data", NS),
            Column("forward_ns", WHOLE, "forward", NS),
            Column("backward_ns", WHOLE, "backward", NS),
            Column("recomputation_ns", WHOLE, "forward work that the backward pass repeats", NS),
            Column("optimizer_ns", WHOLE, "optimizer", NS),
            Column("checkpoint_ns", WHOLE, "checkpoint", NS),
            Column("rest_ns", WHOLE, "what no phase covers", NS),
        ),
    ),
    RANKS: View(
        "Each rank of a window.",
        (
            _WINDOW,
            _RANK,
            Column("world_size", WHOLE, "number of ranks of the job; NULL if unknown"),
            Column("host", TEXT, "machine; NULL if unknown"),
            Column("device_name", TEXT, "device that worked; NULL if unknown"),
            Column("trace", TEXT, "file"),
            *_TIMES,
            Column("events", WHOLE, "number of events"),
            Column("complete", BOOLEAN, "no event of any step may be missing"),
        ),
    ),
    WINDOWS: View(
        "Each window, from `steps`: to compare windows, whose names do not sort.",
        (
            _WINDOW,
            Column("age", WHOLE, "1 for the newest, 2 for the one before, ...; of several paths, 1 "
                   "is the last"),
            *_TIMES[:3],
            Column("ranks", WHOLE, "number of ranks"),
            Column("rank_steps", WHOLE, "number of marked steps, over all ranks: sums divided by "
                   "it are means of a step; a rank without marked steps counts once"),
        ),
    ),
}  # fmt: skip
"""The views, in the order of the page."""


class _Texts(NamedTuple):
    """A column of texts.

    Attributes:
        place: The index of each text; another index means NULL.
        values: The distinct texts; an empty one means NULL.
    """

    place: Numbers
    values: list[str]


Columns = dict[str, Any]
"""NumPy arrays of one length or :class:`_Texts`, by name. A whole number of -1 means NULL."""


def view_file(folder: Path, view: str) -> Path:
    """Return the path of a view's table in the folder of a trace's results."""
    return parquet_file(folder, view if view == EVENTS else f"view_{view}")


def write_view(view: str, measured: MeasuredTrace, folder: Path) -> Iterator[Path]:
    """Write the table of a view for one trace; yield the path.

    Args:
        view: One of :data:`TRACE_VIEWS`.
        measured: The trace.
        folder: The folder of its results.

    Raises:
        OSError: The file cannot be written.
    """
    if view == EVENTS:
        yield from write_events(measured, folder)
        return
    columns = _COLUMNS[view](measured)
    types = {column.name: column.type for column in VIEWS[view].columns}
    make_output_folder(folder / FOLDER)
    with connection() as database:
        given, chosen, joins = {}, [], []
        for name, column in columns.items():
            if isinstance(column, _Texts):
                given[name] = column.place
                values = np.array([*column.values, ""], object)  # DuckDB reads no empty column
                database.register(f"of_{name}", {"place": np.arange(len(values)), "text": values})
                joins.append(f"LEFT JOIN of_{name} ON of_{name}.place = given.{name}")
                chosen.append(f"nullif(of_{name}.text::VARCHAR, '') AS {name}")
            else:
                given[name] = column
                chosen.append(f"{_known(name, types[name])} AS {name}")
        database.register("given", given)
        query = f"FROM given {' '.join(joins)} SELECT {', '.join(chosen)}"
        yield copy(database, view_file(folder, view), query)


def _known(name: str, kind: str) -> str:
    """Return the SQL for a column of numbers whose -1 means NULL."""
    if name == "start_ns":
        return f"given.{name}"
    known = f"nullif(given.{name}, -1)"
    return f"{known}::BOOLEAN" if kind == BOOLEAN else known


def _spans(measured: MeasuredTrace, chosen: Numbers) -> Columns:
    """Return the columns that every view of events has."""
    spans = measured.trace.spans
    return {
        "rank": np.full(len(chosen), measured.rank),
        "step": steps_of(measured)[chosen],
        "id": chosen,
        "start_ns": measured.base_ns + spans["start"][chosen],
        "duration_ns": spans["length"][chosen],
        "name": _named(measured, chosen),
    }


def _named(measured: MeasuredTrace, chosen: Numbers) -> _Texts:
    """Return the names of spans; NULL for -1."""
    place = np.append(measured.trace.spans["name"], UNKNOWN)[chosen]
    return _Texts(place, measured.trace.tables["name"])


def _threads(measured: MeasuredTrace, chosen: Numbers) -> Columns:
    place, threads = measured.trace.spans["thread"][chosen], measured.trace.tables["thread"]
    return {
        name: _Texts(place, [str(thread[part]) for thread in threads])
        for part, name in enumerate(("pid", "tid"))
    }


def _texts(codes: Numbers, text: Callable[[int], str]) -> _Texts:
    """Return a text for each code; the text of each distinct code is made once."""
    values, place = np.unique(codes, return_inverse=True)
    return _Texts(place.reshape(-1), [text(value) for value in values.tolist()])


def _line(measured: MeasuredTrace, thread: Numbers, when: Numbers) -> _Texts:
    """Return the place in the user's code at moments on threads; -1 means no thread."""
    trace = measured.trace
    frame = code_at(trace, measured.calls, thread, when).frame
    early = np.append(open_at_start(trace, measured.marked), False)[frame]
    name = np.append(trace.spans["name"], UNKNOWN)[frame]

    def text(both: int) -> str:
        code, before = divmod(both, 2)
        found = trace.tables["name"][code]
        return place_of(found, open_at_start=bool(before)) if code != UNKNOWN else ""

    return _texts(2 * name + early, text)


def _stack(measured: MeasuredTrace, operator: Numbers) -> _Texts:
    """Return the stacks of operators, given by their index; NULL for -1."""
    stacks = measured.call_stacks
    number = np.append(stacks.number, 0)[operator]
    return _texts(number, lambda one: stacks.text(one).replace(SEPARATOR, _FRAMES_BETWEEN))


def _ids(measured: MeasuredTrace) -> Numbers:
    """Return the id of each operator, and -1 at the end; the labels of steps have none."""
    found, kept = measured.operators, without_steps(measured)
    ids = np.full(len(found.span) + 1, UNKNOWN, np.int64)
    ids[kept] = found.span[kept]
    return ids


def _operator(measured: MeasuredTrace, operator: Numbers) -> Columns:
    """Return name and id of operators that are given by their index; NULL for -1."""
    ids = _ids(measured)[operator]
    return {"operator": _named(measured, ids), "operator_id": ids}


def _shapes(measured: MeasuredTrace, spans: Numbers, part: int = 0) -> _Texts:
    """Return the shapes of operators' inputs, or their types; NULL for -1."""
    dims = measured.trace.tables["dims"]
    place = np.append(measured.trace.spans["dims"], UNKNOWN)[spans]
    return _texts(place, lambda code: shapes_text(dims[code][part]) if code != UNKNOWN else "")


def _operators(measured: MeasuredTrace) -> Columns:
    trace, found, kept = measured.trace, measured.operators, without_steps(measured)
    span = found.span[kept]
    unknown = bool(found.device_unknown) and not found.device_self_ns.any()
    self_ns, total = (
        np.full(len(kept), UNKNOWN) if unknown else times[kept]
        for times in (found.device_self_ns, found.device_total_ns)
    )
    start, thread = (trace.spans[name][span] for name in ("start", "thread"))
    return {
        **_spans(measured, span),
        "category": _Texts(trace.spans["category"][span], trace.tables["category"]),
        "self_ns": found.self_ns[kept],
        "device_self_ns": self_ns,
        "device_ns": total,
        "parent_id": _ids(measured)[found.parent[kept]],
        "shapes": _shapes(measured, span),
        "types": _shapes(measured, span, 1),
        **_threads(measured, span),
        "line": _line(measured, thread, start),
        "stack": _stack(measured, kept),
    }


def _kernels(measured: MeasuredTrace) -> Columns:
    trace, started = measured.trace, measured.launches
    work, call, spans = started.work, started.call, trace.spans
    names, details = trace.tables["name"], trace.tables["details"]
    by = launched_by(trace, started, measured.operators.span, measured.operators.parent)
    caller = np.where(call == UNKNOWN, np.append(measured.operators.span, UNKNOWN)[by], call)
    own, launch = spans["details"][work], launch_configurations(trace, started)

    def each(value: str, which: Numbers) -> Any:
        return np.array([getattr(one, value) for one in details])[which]

    kinds, place = np.unique(cores(trace, work), return_inverse=True)
    on_tensors = np.array([_flag(on_tensor_cores(name)) for name in names], np.int64)
    is_kernel = trace.category(KERNEL_CATEGORIES)[work]
    return {
        **_spans(measured, work),
        "kind": _Texts(place.reshape(-1), kinds.tolist()),
        "category": _Texts(measured.category_codes, list(CATEGORIES)),
        "device": spans["device"][work],
        "stream": spans["stream"][work],
        "grid": _texts(launch, lambda code: _joined(details[code].grid)),
        "block": _texts(launch, lambda code: _joined(details[code].block)),
        "blocks": blocks(trace, started),
        "registers": each("registers", own),
        "shared_memory": each("shared_memory", launch),
        "occupancy": each("occupancy", own),
        "tensor_cores": np.where(is_kernel, on_tensors[spans["name"][work]], UNKNOWN),
        "bytes": each("copied", own),
        "queued_ns": _queued(measured),
        "idle_before_ns": waits(trace, work),
        "launch_id": call,
        **_operator(measured, by),
        "shapes": _shapes(measured, _ids(measured)[by]),
        "line": _line(measured, *_moments(measured, caller)),
        "stack": _stack(measured, by),
    }


def _flag(known: bool | None) -> int:
    return UNKNOWN if known is None else int(known)


def _joined(numbers: bytes) -> str:
    return ",".join(map(str, directions(numbers)))


def _moments(measured: MeasuredTrace, spans: Numbers) -> tuple[Numbers, Numbers]:
    """Return thread and start of spans; -1 means no thread."""
    columns = measured.trace.spans
    thread = np.append(columns["thread"], UNKNOWN)[spans]
    return thread, np.append(columns["start"], 0)[spans]


def _queued(measured: MeasuredTrace) -> Numbers:
    """Return how long each device activity was queued, in ns; -1 if unknown."""
    trace, started = measured.trace, measured.launches
    found = np.full(len(started.work), UNKNOWN, np.int64)
    for device in distinct(trace.spans["device"][started.work]).tolist():
        here = queue(trace, started, device)
        found[here.work] = here.delay
    return found


def _launches(measured: MeasuredTrace) -> Columns:
    trace, started = measured.trace, measured.launches
    known = np.flatnonzero(started.call != UNKNOWN)
    call, first, place = np.unique(started.call[known], return_index=True, return_inverse=True)
    length, busy = trace.spans["length"][started.work[known]], np.zeros(len(call), np.int64)
    np.add.at(busy, place.reshape(-1), length)
    found = measured.operators
    by = innermost(trace, found.span, found.parent, call)
    return {
        **_spans(measured, call),
        **_threads(measured, call),
        "activities": np.bincount(place.reshape(-1), minlength=len(call)),
        "device_ns": busy,
        "queued_ns": _queued(measured)[known[first]],  # work is in order of start
        **_operator(measured, by),
        "line": _line(measured, *_moments(measured, call)),
        "stack": _stack(measured, by),
    }


def _idle(measured: MeasuredTrace) -> Columns:
    """Return the pieces of idle time, once each, also where steps overlap.

    They are cut where the operator or the line that findings name begins or ends.
    """
    trace, nothing = measured.trace, np.zeros(0, np.int64)
    pieces = measured.idle or Idle(*(nothing for _ in fields(Idle)))
    found = measured.operators
    edges = np.concatenate([found.span, np.flatnonzero(user_frames(trace))])
    begin = trace.spans["start"][edges]
    pieces = pieces.cut_at(np.concatenate([begin, begin + trace.spans["length"][edges]]))
    label = _ids(measured)[open_at(trace, found.span, found.parent, pieces.thread, pieces.start)]
    called = code_at(trace, measured.calls, pieces.thread, pieces.start).operator
    by = np.where(called == UNKNOWN, label, called)
    line = _line(measured, pieces.thread, pieces.start)
    same = [pieces.gap, pieces.kind, pieces.cause, pieces.call, pieces.thread, by, line.place]
    first = _first_of_runs(pieces.start, pieces.end, same)
    end = pieces.end[np.append(first[1:], len(by))[: len(first)] - 1]
    pieces, by, line = pieces.select(first), by[first], line._replace(place=line.place[first])
    steps = np.array([-1 if n is None else n for n, _, _ in measured.marked], np.int64)
    begins = np.array([begin for _, begin, _ in measured.marked], np.int64)
    return {
        "rank": np.full(len(first), measured.rank),
        "step": steps[np.searchsorted(begins, pieces.start, side="right") - 1],
        "start_ns": measured.base_ns + pieces.start,
        "duration_ns": end - pieces.start,
        "device": np.full(len(first), measured.breakdown.device),
        "gap": pieces.gap,
        "kind": _Texts(pieces.kind, list(IDLE_KINDS)),
        "cause": _Texts(pieces.cause, list(CAUSES)),
        "call": _named(measured, pieces.call),
        "host_operator": _named(measured, by),
        "line": line,
    }


def _first_of_runs(start: Numbers, end: Numbers, same: Iterable[Numbers]) -> Numbers:
    """Return the indices at which a piece does not continue the one before it."""
    differs = np.ones(len(start), bool)
    differs[1:] = start[1:] != end[:-1]
    for column in same:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def _memory(measured: MeasuredTrace) -> Columns:
    trace, made = measured.trace, measured.allocations
    memory = trace.memory
    chosen = np.flatnonzero(memory["bytes"] > 0)  # in the order of the allocations
    thread, when = memory["thread"][chosen], memory["time"][chosen]
    found = measured.operators
    by = open_at(trace, found.span, found.parent, thread, when)
    is_operator = np.append(trace.category(OPERATOR_CATEGORIES)[found.span], True)
    while not (wanted := is_operator[by]).all():
        by = np.where(wanted, by, np.append(found.parent, ROOT)[by])
    released = _whole(UNKNOWN if one.released is None else one.released for one in made)
    freed = released != UNKNOWN
    return {
        "rank": np.full(len(made), measured.rank),
        "step": _steps_at(measured, when),
        "start_ns": measured.base_ns + when,
        "duration_ns": np.where(freed, released - when, UNKNOWN),
        "bytes": memory["bytes"][chosen],
        "device": _coded(one.device for one in made),
        "allocated_bytes": memory["total"][chosen],
        "reserved_bytes": memory["reserved"][chosen],
        "operator": _coded(one.operator for one in made),
        "operator_id": _ids(measured)[by],
        "line": _line(measured, thread, when),
        "stack": _stack(measured, by),
    }


def _steps_at(measured: MeasuredTrace, when: Numbers) -> Numbers:
    """Return the marked step around each moment; -1 for none."""
    marked = measured.marked
    numbers = _whole(UNKNOWN if number is None else number for number, _, _ in marked)
    begins = _whole(begin for _, begin, _ in marked)
    ends = begins + _whole(length for *_, length in marked)
    return np.append(numbers, UNKNOWN)[span_at(when, begins, ends)]


def _whole(values: Iterable[int]) -> Numbers:
    return np.array([*values], np.int64)


def _coded(values: Iterable[str]) -> _Texts:
    known: dict[str, int] = {}
    place = _whole(known.setdefault(value, len(known)) for value in values)
    return _Texts(place, list(known))


def _ranks(measured: MeasuredTrace) -> Columns:
    spans = measured.trace.spans
    begin = int(spans["start"][:1].sum())  # 0 for a trace without events
    end = int((spans["start"] + spans["length"]).max(initial=begin))
    texts = {
        "host": measured.host,
        "device_name": measured.device_name,
        "trace": str(measured.path),
    }
    numbers = {
        "rank": measured.rank,
        "world_size": measured.world_size or UNKNOWN,
        "start_ns": measured.base_ns + begin,
        "duration_ns": end - begin,
        "events": len(spans["start"]),
        "complete": int(not measured.truncation.incomplete),
    }
    return {
        **{name: _whole([value]) for name, value in numbers.items()},
        **{name: _coded([text]) for name, text in texts.items()},
    }


_COLUMNS: dict[str, Callable[[MeasuredTrace], Columns]] = {
    OPERATORS: _operators,
    KERNELS: _kernels,
    LAUNCHES: _launches,
    IDLE: _idle,
    MEMORY: _memory,
    RANKS: _ranks,
}
TRACE_VIEWS = (EVENTS, *_COLUMNS)
"""The views whose rows come from single traces, not from the tables of ranks."""

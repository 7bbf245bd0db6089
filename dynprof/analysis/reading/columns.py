"""One chunk of a trace as columns; several processes can work on chunks in parallel.

Some times cannot be: not measured, negative, in another unit, or too long for a stream.
"""

from __future__ import annotations

import contextlib
import operator
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynprof.analysis.reading.events import (
    CALLS,
    FLOWS,
    MARKS,
    NONE,
    Args,
    Counters,
    Details,
    Event,
    ExactEvent,
    ForeignArgs,
    ForeignEvent,
    counters,
    decode,
    details,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from decimal import Decimal

    from numpy.typing import NDArray

    Columns = dict[str, NDArray[np.int64]]
    Labels = dict[tuple[int | str, int | str | None], str]
    "Names by process, and thread; None for that of the process."

TABLES = ("name", "category", "thread", "dims", "group", "details")
"""Columns that hold indexes into a table of values."""
_MARKING = frozenset({"i", "b"})
"""Phases of moments, and of the start of ranges whose end is an event of its own."""
_ON_THREADS = frozenset({"B", "E"})
"""Phases of the begin event and the end event of a span; those of one thread nest."""
_ASYNCHRONOUS = frozenset({"b", "e"})
_ENDS_OF_FLOWS = frozenset({"s", "f"})
_NAMING = frozenset({"process_name", "thread_name"})
_NO_ARGS = ForeignArgs()
_INT64_LIMIT = 1 << 63
"""Limit of numbers that fit into 64 bits."""
LATEST_NS = 1 << 62
"""Upper limit of times in ns: the sum of a start and a duration below it fits into 64 bits."""
_WITH_VALUES = re.compile(r"aten::(_?convolution(_backward)?|.*scaled_dot_product.*|sum|mean)")
"""Operators whose FLOPs depend on values too. Values of all operators would make long tables."""
_EXPANDED = re.compile(rb"(?<!\d)0(?!\d)")
"""Matches a stride of 0, as of an expanded tensor; no other stride is needed."""
_ELSEWHERE = {"external_id": "external_id_in_1_8", "stream": "queue"}
"""Other names of a number, in some versions and on some devices."""
_CONNECTION = operator.attrgetter("connection")
_NUMBERS = ("external_id", "sequence", "device", "correlation", *_ELSEWHERE.values())
_NANOSECONDS = 10**17
"""Times from here are absolute nanoseconds: as microseconds they are after the year 5000."""
SHORTEST_TRACE_NS = 1000
"""Least length of a trace's longest span, in ns. In seconds, 1,000 of them look shorter."""
_HOUR = 3600 * 10**9
"""Nanoseconds of an hour: no window is longer, so a start of 0 before it is missing."""
_FAR_NS = 24 * _HOUR
"""Distance from the median start from which a time cannot be, in ns: no window is that long."""
_FAR_SPANS = 10
"""The same as a multiple of the time in which the middle half of the events begin."""
_MAX_OVERLONG_SHARE = 0.25
"""Share of a stream's activities that may be too long; with more, the stream is not in order."""


class FlowEnd(NamedTuple):
    """One end of an arrow.

    Attributes:
        number: The number that both ends have.
        begins: Whether the arrow begins here.
        thread: Process and thread of the event that it is attached to.
        start: When that event began, in ns.
    """

    number: int | str
    begins: bool
    thread: tuple[int | str, int | str]
    start: int


class Edge(NamedTuple):
    """The begin event or the end event of a span.

    Attributes:
        nest: What it nests in: process and thread, or process, category and id if asynchronous.
        time: When it is, in ns.
        begins: Whether it is a begin event.
        span: Its index among the spans of its chunk; -1 for an end, and if asynchronous.
    """

    nest: tuple[int | str, ...]
    time: int
    begins: bool
    span: int

    @property
    def is_asynchronous(self) -> bool:
        """Whether it belongs to no thread."""
        return len(self.nest) > 2


class Table(dict[Any, int]):
    """Indexes of values, from 0; a new value is added on its first use."""

    def __missing__(self, value: Any) -> int:
        place = self[value] = len(self)
        return place

    def places(self, values: Iterable[Any], count: int) -> NDArray[np.int64]:
        """Return the indexes of ``count`` values."""
        return np.fromiter(map(self.__getitem__, values), np.int64, count)


@dataclass
class ChunkColumns:
    """The columns of a chunk.

    Attributes:
        spans: Columns of the events with a duration: ``start`` and ``length`` in ns, and more.
        memory: Columns of allocations and releases: ``time`` in ns, ``bytes``, ``total``, ...
        tables: The values that the columns of the same name index.
        ends: The ends of ranges that may cross others: process, id, and time in ns.
        edges: The begins and ends of spans that are two events, in the order of the file.
        labels: Names of processes, and of threads; only of a bare list of events.
        flows: Both ends of the arrows from operators to their work; only of such a list.
        unreadable: The number of events whose times cannot be read; they are left out.
        in_nanoseconds: The number of times that were in nanoseconds.
        no_events: The number of entries that are no events, such as a null.
        counters: The values of CUPTI's counters.
    """

    spans: Columns = field(default_factory=dict)
    memory: Columns = field(default_factory=dict)
    tables: dict[str, list[Any]] = field(default_factory=dict)
    ends: list[tuple[int | str, int | str, int]] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)
    flows: list[FlowEnd] = field(default_factory=list)
    unreadable: int = 0
    in_nanoseconds: int = 0
    no_events: int = 0
    counters: list[Counters] = field(default_factory=list)


def digest(chunk: bytes, kind: type[Event]) -> ChunkColumns:
    """Return the columns of a chunk.

    Args:
        chunk: Events, with commas between them.
        kind: What they are decoded to.

    Raises:
        msgspec.MsgspecError: It is not JSON.
    """
    events, counted = decode(chunk, kind), counters(chunk)
    with contextlib.suppress(ArithmeticError, ValueError):  # a number too large for 64 bits
        found = _digested(events)
        if _sums_fit(found):
            found.counters = counted
            return found
    if kind is Event and any(is_in_nanoseconds(event.ts) for event in events):
        return digest(chunk, ExactEvent)
    converted = sum(map(in_microseconds, events))
    fitting = [event for event in events if _fit(event)]
    found = _digested(fitting)
    found.labels, found.counters = _labels(events), counted  # metadata has no time
    found.in_nanoseconds = converted
    found.no_events = sum(not e.ph for e in events)
    timed = _ON_THREADS | {"X"}
    found.unreadable = sum(e.ph in timed for e in events) - sum(e.ph in timed for e in fitting)
    return found


def _digested(events: list[Event]) -> ChunkColumns:
    tables = {name: Table() for name in TABLES}
    spans = [e for e in events if e.ph == "X" or _is_span(e)]
    rest = [e for e in events if e.ph != "X"]
    ends = [e for e in rest if e.ph == "e" and e.cat in MARKS]
    times = _starts(ends)
    memory = [e for e in rest if e.name == "[memory]" and e.args is not None]
    return ChunkColumns(
        spans=_spans(spans, tables),
        memory=_memory(memory, tables),
        tables={name: list(table) for name, table in tables.items()},
        ends=[(e.pid, e.id, time) for e, time in zip(ends, times.tolist(), strict=True)],
        edges=_edges(rest, spans),
        labels=_labels(events),
        flows=_flows(events),
        no_events=sum(not e.ph for e in rest),
    )


def _is_span(event: Event) -> bool:
    """Return whether an event other than a whole span becomes one."""
    begins = event.ph == "B" and not _was_open(event)
    return begins or (event.ph in _MARKING and event.cat in MARKS)


def _was_open(event: Event) -> bool:
    """Return whether an event is a call that had not returned as VizTracer stopped; never read."""
    return event.ph == "B" and event.cat in CALLS


def _edges(events: list[Event], spans: list[Event]) -> list[Edge]:
    """Return the begin and end events; the begin events on threads are also among the spans."""
    edges = [
        e
        for e in events
        if (e.ph in _ON_THREADS and not _was_open(e))
        or (e.ph in _ASYNCHRONOUS and e.cat not in MARKS)
    ]
    places = iter([place for place, e in enumerate(spans) if e.ph == "B"] if edges else ())
    return [
        Edge(
            (e.pid, e.tid) if e.ph in _ON_THREADS else (e.pid, e.cat, e.id),
            time,
            e.ph in "Bb",
            next(places) if e.ph == "B" else NONE,
        )
        for e, time in zip(edges, _starts(edges).tolist(), strict=True)
    ]


def _are_foreign(events: list[Event]) -> bool:
    return bool(events) and type(events[0]) is ForeignEvent


def _labels(events: list[Event]) -> Labels:
    """Return the names of processes and threads in a bare list of events; else nothing."""
    if not _are_foreign(events):
        return {}
    return {
        (e.pid, e.tid if e.name == "thread_name" else None): e.args.label
        for e in events
        if e.ph == "M" and e.name in _NAMING and isinstance(e.args, ForeignArgs)
    }


def _flows(events: list[Event]) -> list[FlowEnd]:
    """Return the ends of arrows in a bare list of events; else nothing."""
    if not _are_foreign(events):
        return []
    flows = [e for e in events if e.ph in _ENDS_OF_FLOWS and e.cat in FLOWS]
    return [
        FlowEnd(e.id, e.ph == "s", (e.pid, e.tid), start)
        for e, start in zip(flows, _starts(flows).tolist(), strict=True)
    ]


def _column(values: Iterable[Any], count: int) -> NDArray[np.int64]:
    return np.fromiter(values, np.int64, count)


def _sums_fit(found: ChunkColumns) -> bool:
    """Return whether sums of the times in columns fit into 64 bits."""
    times = (found.spans["start"], found.spans["length"], found.memory["time"])
    return all(bool(((column > -LATEST_NS) & (column < LATEST_NS)).all()) for column in times)


def _fit(event: Event) -> bool:
    """Return whether the times of an event fit into 64 bits; drop arguments that do not."""
    try:
        times = (event.start_ns(), event.length_ns())
    except (ValueError, OverflowError, ArithmeticError):  # not a number, infinite
        return False
    if event.args is not None:
        for name in event.args.__struct_fields__:
            value = getattr(event.args, name)
            if isinstance(value, int) and not -_INT64_LIMIT <= value < _INT64_LIMIT:
                setattr(event.args, name, NONE)
    return all(-LATEST_NS < time < LATEST_NS for time in times)


def _spans(events: list[Event], tables: dict[str, Table]) -> Columns:
    count, args = len(events), [e.args or _NO_ARGS for e in events]
    names = [e.name for e in events]
    columns = {
        "start": _starts(events),
        "length": _ns([e.dur if e.ph == "X" else 0 for e in events]),
        "name": tables["name"].places(names, count),
        "category": tables["category"].places([e.cat for e in events], count),
    }
    threads = [e.tid for e in events]
    if not MARKS.isdisjoint(tables["category"]):
        threads = [e.mark_thread() if e.cat in MARKS else e.tid for e in events]
    pairs = zip([e.pid for e in events], threads, strict=True)
    columns |= {
        "thread": tables["thread"].places(pairs, count),
        "dims": _dims(args, names, tables["dims"]),
        "group": _groups(args, tables["group"]),
        "details": _details(events, args, tables["details"]),
    }
    for name in _NUMBERS:
        columns[name] = _column(map(operator.attrgetter(name), args), count)
    streams = [a.stream for a in args]
    columns["stream"] = _column((s if type(s) is int else NONE for s in streams), count)
    if _are_foreign(events):
        missing = columns["correlation"] == NONE
        columns["correlation"][missing] = _column(map(_CONNECTION, args), count)[missing]
    for name, other in _ELSEWHERE.items():
        missing = columns[name] == NONE
        columns[name][missing] = columns.pop(other)[missing]
    return columns


def _starts(events: list[Event]) -> NDArray[np.int64]:
    """Return the start times of events, in ns."""
    if events and isinstance(events[0], ExactEvent):
        return _column((e.start_ns() for e in events), len(events))
    return _ns([e.ts for e in events])


def _ns(microseconds: list[float]) -> NDArray[np.int64]:
    """Return times in whole ns, rounded as Python does.

    Raises:
        ValueError: A time is not finite, or too large.
    """
    with np.errstate(over="ignore"):
        found = np.rint(np.array(microseconds, np.float64) * 1000)
    if not (np.abs(found) < LATEST_NS).all():
        raise ValueError
    return found.astype(np.int64)


class _Valued(dict[str, bool]):
    """Whether the values of an operator's arguments are kept, by its name."""

    def __missing__(self, name: str) -> bool:
        kept = self[name] = bool(_WITH_VALUES.fullmatch(name))
        return kept


def _dims(args: list[Args], names: list[str], table: Table) -> NDArray[np.int64]:
    """Return the indexes of operators' inputs; each distinct text is parsed once."""
    known, valued, found = dict[bytes, int](), _Valued(), list[int]()
    for a, name in zip(args, names, strict=True):
        shapes, text = a.dims or a.dims_in_1_8, b""
        if shapes or a.types or a.strides or a.values:
            text = b"\0".join((shapes, a.types, a.values if valued[name] else b"", a.strides))
        if text not in known:
            known[text] = table[_inputs(a, valued[name])]
        found.append(known[text])
    return np.array(found, np.int64)


def _inputs(args: Args, valued: bool) -> tuple[bytes, bytes, bytes, bytes]:
    """Return shapes and types of an operator's inputs; for some also values and strides."""
    shapes, strides = bytes(args.dims) or bytes(args.dims_in_1_8), bytes(args.strides)
    values = bytes(args.values) if valued else b""
    return shapes, bytes(args.types), values, strides if _EXPANDED.search(strides) else b""


def _groups(args: list[Args], table: Table) -> NDArray[np.int64]:
    """Return the indexes of process groups, by name and members."""
    nothing = (b"", b"")
    given = ((bytes(a.group), bytes(a.members)) if a.group or a.members else nothing for a in args)
    return table.places(given, len(args))


def _details(events: list[Event], args: list[Args], table: Table) -> NDArray[np.int64]:
    """Return the indexes of the details of devices' work and of marks."""
    found = np.full(len(args), table[Details()], np.int64)
    foreign = _are_foreign(events)
    for place, a in enumerate(args):
        if a.device != NONE or a.grid or a.domain or a.direction:
            event = events[place]
            found[place] = table[details(a, event.id if event.ph == "b" else None)]
        elif foreign and isinstance(a, ForeignArgs) and a.task_type:
            found[place] = table[Details(task_type=a.task_type)]
    return found


def _memory(events: list[Event], tables: dict[str, Table]) -> Columns:
    count, threads = len(events), tables["thread"]
    args = [e.args or _NO_ARGS for e in events]
    return {
        "time": _starts(events),
        "thread": threads.places(((e.pid, e.tid) for e in events), count),
        "bytes": _column((a.bytes for a in args), count),
        "total": _column((a.total for a in args), count),
        "reserved": _column((a.reserved for a in args), count),
        "address": _column((a.address for a in args), count),
        "device_type": _column((a.device_type for a in args), count),
        "device_id": _column((a.device_id for a in args), count),
    }


@dataclass
class DoubtfulTimes:
    """How many events of a trace have times that cannot be, or are not read for another reason.

    Attributes:
        unreadable: Times that are missing, not a number, infinite or beyond 64 bits; left out.
        negative: Negative durations; left out.
        far: Columns and allocations that are far from all others; left out.
        not_measured: Activities of a device without a start; left out.
        overlong: Activities that last longer than their stream allows; shortened.
        in_nanoseconds: Times in nanoseconds instead of the format's microseconds; converted.
        no_events: Entries of the list of events that are none, such as a null; left out.
        too_short: Columns, if none lasts a microsecond.
        unpaired: Begin events without an end event, and the reverse, of spans on threads; left out.
        asynchronous: Begin events of ranges that belong to no thread; not read.
        asynchronous_ns: The time of those, in ns.
    """

    unreadable: int = 0
    negative: int = 0
    far: int = 0
    not_measured: int = 0
    overlong: int = 0
    in_nanoseconds: int = 0
    no_events: int = 0
    too_short: int = 0
    unpaired: int = 0
    asynchronous: int = 0
    asynchronous_ns: int = 0


def is_in_nanoseconds(time: float | Decimal) -> bool:
    """Return whether a time can only be in nanoseconds, although the format has microseconds."""
    try:
        return bool(_NANOSECONDS <= time < LATEST_NS)
    except ArithmeticError:  # a decimal that is not a number
        return False


def in_microseconds(event: Event) -> bool:
    """Convert the times of an event from nanoseconds; return whether they were."""
    found = is_in_nanoseconds(event.ts)
    if found:
        event.ts, event.dur = event.ts / 1000, event.dur / 1000
    return found


def usable(spans: Columns, on_device: NDArray[np.bool_], doubtful: DoubtfulTimes) -> Columns:
    """Return the spans whose times can be; count the others.

    CUPTI reports 0 for the times of a kernel that it did not measure. Kineto writes 0 for times
    before its base time.

    Args:
        spans: Columns of the spans.
        on_device: Which of them are activities of a device.
        doubtful: Where to count.
    """
    start, length = spans["start"], spans["length"]
    negative = length < 0
    zero = on_device & (start == 0)
    if zero.any():
        far = int(start[start != 0].min(initial=np.iinfo(np.int64).max)) > _HOUR
        zero &= (length == 0) | far
    doubtful.negative += int(negative.sum())
    doubtful.not_measured += int((zero & ~negative).sum())
    left_out = negative | zero
    if not left_out.any():
        return spans
    return {name: column[~left_out] for name, column in spans.items()}


def near(spans: Columns, memory: Columns, doubtful: DoubtfulTimes) -> tuple[Columns, Columns]:
    """Return spans and allocations without those far from all others; count the others.

    A damaged time is years away, and would make the trace as long.

    Args:
        spans: Columns of the spans.
        memory: Columns of the allocations.
        doubtful: Where to count.
    """
    start = spans["start"].astype(float)  # a difference of two may not fit into 64 bits
    if not len(start):
        return spans, memory
    first, middle, last = np.quantile(start, (0.25, 0.5, 0.75))
    limit = max(_FAR_NS, _FAR_SPANS * (last - first))
    kept = np.abs(start - middle) <= limit
    kept &= start + spans["length"] - middle <= limit
    known = np.abs(memory["time"].astype(float) - middle) <= limit
    doubtful.far += int((~kept).sum() + (~known).sum())
    if kept.all() and known.all():
        return spans, memory
    return (
        {name: column[kept] for name, column in spans.items()},
        {name: column[known] for name, column in memory.items()},
    )


def shorten_overlong(spans: Columns, in_order: NDArray[np.bool_]) -> int:
    """Shorten activities that outlast a later one on their stream; return how many.

    An activity ends before the next one that another call launched on its stream begins. Activities
    of one launch, such as those of a CUDA graph, may overlap. A dependent launch overlaps too, but
    ends later.

    Args:
        spans: Columns of the spans, in order of start.
        in_order: Which of them are activities of streams that run one after the other.
    """
    chosen = np.flatnonzero(in_order & (spans["correlation"] != NONE))
    keys = [spans[name][chosen] for name in ("stream", "device", "thread")]
    order = np.lexsort(keys)
    work = chosen[order]
    if not len(work):
        return 0
    start, length = spans["start"][work], spans["length"][work]
    end, launch = start + length, spans["correlation"][work]
    begins = np.zeros(len(work), bool)
    for key in keys:
        begins |= np.diff(key[order], prepend=key[order][:1] - 1) != 0
    stream = np.cumsum(begins) - 1
    begins |= np.diff(launch, prepend=launch[:1]) != 0
    launched = np.cumsum(begins) - 1
    firsts = np.append(np.flatnonzero(begins), len(work) - 1)
    after = firsts[launched + 1]
    outlasts = (stream[after] == stream) & (launch[after] != launch) & (length[after] > 0)
    outlasts &= (start < start[after]) & (start[after] < end) & (end[after] <= end)
    overlong = np.bincount(stream[outlasts], minlength=int(stream[-1]) + 1)
    most = np.maximum(_MAX_OVERLONG_SHARE * np.bincount(stream), 1)
    outlasts &= (overlong <= most)[stream]
    spans["length"][work[outlasts]] = (start[after] - start)[outlasts]
    return int(outlasts.sum())

"""A whole trace as columns; marks on devices have a category of their own."""

from __future__ import annotations

import contextlib
import operator
import pickle
import re
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dynprof.analysis.reading.chunks import NOTHING, Damage, TraceFile
from dynprof.analysis.reading.columns import (
    SHORTEST_TRACE_NS,
    TABLES,
    DoubtfulTimes,
    Edge,
    Table,
    digest,
    near,
    shorten_overlong,
    usable,
)
from dynprof.analysis.reading.dialects import translate
from dynprof.analysis.reading.events import (
    DEVICE_MARK,
    IN_ORDER,
    LABELS,
    LAUNCHES,
    MTIA_COPY,
    MTIA_EVENT,
    MTIA_ROWS,
    ON_DEVICE,
    OPERATORS,
    Event,
    ExactEvent,
    ForeignEvent,
)
from dynprof.analysis.reading.spans import cover, distinct
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from pathlib import Path
    from types import TracebackType

    from numpy.typing import NDArray

    from dynprof.analysis.reading.columns import ChunkColumns, Columns
    from dynprof.analysis.reading.events import Counters, Names
    from dynprof.analysis.reading.spans import Cover

    Chosen = NDArray[np.bool_]

LABEL = "dynprof: device mark"
"""Name of the range around a mark on a device. The recorder has the same constant."""
_ORDER = operator.attrgetter("order")
_LASTING = OPERATORS | LABELS | LAUNCHES | ON_DEVICE
"""Categories of events that take time."""
_MTIA_COPY = "dma_request"
_MTIA_EVENTS = frozenset({"event_wait", "event_record"})
"""Waits of a stream for an event, and records of one: no work, though they are on its row."""
Found = TypeVar("Found")
_ENDED = "the process that shared the work on it ended"
_AHEAD = 2
"""Chunks that the first process digests while the second one is starting."""


def of_device_marks(spans: Columns, tables: dict[str, list[Any]]) -> Chosen:
    """Return the spans that only set a mark.

    Args:
        spans: The spans of a trace, by start time.
        tables: The values that their columns index.
    """
    found = np.zeros(len(spans["start"]), bool)
    if LABEL not in tables["name"]:
        return found
    outer = _of(spans, tables, LABELS) & (spans["name"] == tables["name"].index(LABEL))
    for thread in distinct(spans["thread"][outer]).tolist():
        here = spans["thread"] == thread
        found |= here & _within(spans, np.flatnonzero(outer & here))
    found &= _of(spans, tables, LABELS | OPERATORS | LAUNCHES)
    numbers = spans["correlation"][found & _of(spans, tables, LAUNCHES)]
    started = np.isin(spans["correlation"], numbers[numbers >= 0])
    return found | (started & _of(spans, tables, ON_DEVICE))


def _within(spans: Columns, outer: NDArray[np.int64]) -> Chosen:
    """Return the spans inside one of the outer spans, which do not overlap."""
    start, end = spans["start"], spans["start"] + spans["length"]
    last = np.searchsorted(start[outer], start, side="right") - 1
    return (last >= 0) & (end <= end[outer][last])


def _of(spans: Columns, tables: dict[str, list[Any]], kinds: Names) -> Chosen:
    passed = np.array([name.lower() in kinds for name in tables["category"]], bool)
    return passed[spans["category"]]


@dataclass
class Trace:
    """The content of a trace; times in whole ns since its base time.

    Attributes:
        members: The members of its JSON object other than the events.
        spans: Columns of the events with a duration, and of marks, which have none. The order is by
            start time, longer ones first. The columns are ``start``, ``length``, ``name``,
            ``category``, ``thread``, ``dims``, ``group``, ``details`` and Kineto's numbers; -1 if
            an event has none.
        memory: Columns of allocations and releases, by time.
        tables: The values that the columns of the same name index.
        truncated: Where and how the file ends too early; empty if it does not.
        complete: Whether it has all of its events.
        size: The number of its uncompressed bytes.
        last: The index of the span that is last in the file; -1 if there is none.
        repaired: Its names that were not escaped.
        lost: Where its events are not valid JSON; those are left out.
        doubtful: How many of its events have times that cannot be.
        counters: The values of CUPTI's counters over each kernel, in order.
        communication: Mask of the spans of devices that move data between ranks or devices;
            ``kernels.communication`` finds them.
    """

    members: dict[str, Any]
    spans: Columns
    memory: Columns
    tables: dict[str, list[Any]]
    truncated: str
    complete: bool
    size: int
    last: int
    repaired: Damage = NOTHING
    lost: Damage = NOTHING
    doubtful: DoubtfulTimes = field(default_factory=DoubtfulTimes)
    counters: list[Counters] = field(default_factory=list)
    communication: Chosen = field(default_factory=lambda: np.zeros(0, bool))
    _known: dict[object, NDArray[np.bool_]] = field(default_factory=dict, repr=False)

    def category(self, *kinds: Names) -> NDArray[np.bool_]:
        """Return the spans of any of these kinds of categories."""
        names = frozenset[str]().union(*kinds)
        found = self._known.get(names)
        if found is None:
            passed = np.array([name.lower() in names for name in self.tables["category"]], bool)
            found = self._known[names] = passed[self.spans["category"]]
        return np.copy(found)

    def set_category(self, chosen: Chosen, category: str) -> None:
        """Give some spans another category."""
        if not chosen.any():
            return
        if category not in self.tables["category"]:
            self.tables["category"].append(category)
        self.spans["category"][chosen] = self.tables["category"].index(category)
        self._known.clear()

    def once(self, measure: Callable[[Trace], Chosen]) -> Chosen:
        """Return the spans that a function of this trace finds; it runs once."""
        found = self._known.get(measure)
        if found is None:
            found = self._known[measure] = measure(self)
        return np.copy(found)

    def named(self, test: Callable[[str], bool]) -> NDArray[np.bool_]:
        """Return the spans whose name passes a test, which runs once for each name."""
        passed = np.array([test(name) for name in self.tables["name"]], bool)
        return passed[self.spans["name"]]

    def when(self, chosen: NDArray[Any]) -> Cover:
        """Return the times that these spans cover."""
        start = self.spans["start"][chosen]
        return cover(start, start + self.spans["length"][chosen])

    def place_of_name(self, name: str) -> int:
        """Return the index of a name in its table; add the name if it is missing."""
        names = self.tables["name"]
        if name not in names:
            names.append(name)
        return names.index(name)

    def name(self, span: int) -> str:
        """Return the name of a span."""
        return str(self.tables["name"][self.spans["name"][span]])


def load_trace(path: Path, partner: Partner | None = None) -> Trace:
    """Read a trace.

    Args:
        path: Its path.
        partner: The connection to a process that reads the other half of the same trace.

    Raises:
        CaptureError: The file is not a trace, or cannot be read.
    """
    try:
        return _loaded(path, partner)
    except RecursionError as error:
        raise CaptureError(f"{path} is damaged: its lists are nested too deep") from error


def _loaded(path: Path, partner: Partner | None) -> Trace:
    import msgspec

    with partner or contextlib.nullcontext():
        file = TraceFile(path)
        kind = _kind_of_events(file)
        chunks = _with(partner, file, kind) if partner else _digested(file, kind)
    if chunks is not None:
        return _joined(file, chunks)
    try:
        with contextlib.closing(file.chunks(sound=True)) as chunks_of_file:
            return _joined(file, [digest(chunk, kind) for chunk in chunks_of_file])
    except msgspec.MsgspecError as error:
        raise CaptureError(f"{path} is damaged: {error}") from error


def _kind_of_events(file: TraceFile) -> type[Event]:
    if file.is_list:
        return ForeignEvent
    return Event if "baseTimeNanoseconds" in file.members else ExactEvent


def _digested(
    file: TraceFile, kind: type[Event], partner: Partner | None = None
) -> list[ChunkColumns] | None:
    """Return the chunks; None if one is damaged, or was cut inside an event."""
    import msgspec

    try:
        # An error keeps the frames here, in a cycle; the file is closed at once all the same.
        with contextlib.closing(file.chunks()) as chunks:
            return [
                digest(chunk, kind)
                for number, chunk in enumerate(chunks)
                if partner is None or partner.takes(number)
            ]
    except msgspec.MsgspecError:
        return None


def _with(partner: Partner, file: TraceFile, kind: type[Event]) -> list[ChunkColumns] | None:
    own = _digested(file, kind, partner)
    received = partner.swap(own)
    if own is None or received is None:
        return None
    here, there = iter(own), iter(received)
    return [next(here if partner.takes(n) else there) for n in range(len(own) + len(received))]


def _joined(file: TraceFile, chunks: list[ChunkColumns]) -> Trace:
    tables = {name: Table() for name in TABLES}
    for chunk in chunks:
        for name, table in tables.items():
            places = np.array([table[value] for value in chunk.tables[name]], np.int64)
            for columns in (chunk.spans, chunk.memory):
                if places.size and name in columns:
                    columns[name] = places[columns[name]]
    chunks = chunks or [digest(b"", Event)]
    doubtful = DoubtfulTimes(
        unreadable=sum(chunk.unreadable for chunk in chunks),
        in_nanoseconds=sum(chunk.in_nanoseconds for chunk in chunks),
        no_events=sum(chunk.no_events for chunk in chunks),
    )
    counts = [len(chunk.spans["start"]) for chunk in chunks]
    spans = _concatenated([chunk.spans for chunk in chunks])
    spans = _ended(spans, tables, chunks, _paired(spans, chunks, counts, doubtful))
    if file.is_list:
        labels = {thread: name for chunk in chunks for thread, name in chunk.labels.items()}
        translate(spans, tables, labels, [end for chunk in chunks for end in chunk.flows])
    on_device = _of(spans, {"category": list(tables["category"])}, ON_DEVICE)
    memory = _concatenated([chunk.memory for chunk in chunks])
    spans, memory = near(usable(spans, on_device, doubtful), memory, doubtful)
    lasting = spans["length"][_of(spans, {"category": list(tables["category"])}, _LASTING)]
    doubtful.too_short = len(lasting) if lasting.max(initial=0) < SHORTEST_TRACE_NS else 0
    order = np.lexsort((-spans["length"], spans["start"]))
    found = Trace(
        members=file.members,
        spans=_ordered(spans, order),
        memory=_ordered(memory, np.argsort(memory["time"], kind="stable")),
        tables={name: list(table) for name, table in tables.items()},
        truncated=file.truncated,
        complete=file.complete,
        size=file.size,
        last=int(order.argmax()) if len(order) else -1,
        repaired=file.repaired,
        lost=file.lost,
        doubtful=doubtful,
        counters=sorted((one for chunk in chunks for one in chunk.counters), key=_ORDER),
    )
    _set_apart_device_marks(found)
    _set_apart_mtia(found)
    _place_on_devices(found)
    doubtful.overlong = shorten_overlong(found.spans, found.category(IN_ORDER))
    return found


def _set_apart_device_marks(trace: Trace) -> None:
    """Give the spans that set marks on streams a category that is not work."""
    trace.set_category(of_device_marks(trace.spans, trace.tables), DEVICE_MARK)


def _set_apart_mtia(trace: Trace) -> None:
    """Give copies and events of an MTIA's streams categories other than that of its kernels."""
    if (rows := trace.category(MTIA_ROWS)).any():
        trace.set_category(rows & trace.named(_MTIA_EVENTS.__contains__), MTIA_EVENT)
        trace.set_category(rows & trace.named(_MTIA_COPY.__eq__), MTIA_COPY)


def _place_on_devices(trace: Trace) -> None:
    """Set missing devices and streams of work to the process and thread of the event.

    Kineto writes them as process and thread too; the arguments differ between vendors.
    """
    on_device, threads = trace.category(ON_DEVICE), trace.tables["thread"]
    for column, part in (("device", 0), ("stream", 1)):
        missing = on_device & (trace.spans[column] < 0)
        if missing.any():
            known = {
                name: place for place, name in enumerate(dict.fromkeys(t[part] for t in threads))
            }
            numbers = [_number(name[part], known[name[part]]) for name in threads]
            trace.spans[column][missing] = np.array(numbers)[trace.spans["thread"][missing]]


def _number(name: int | str, otherwise: int) -> int:
    """Return a process or thread that is a number, or the number at the end of its name."""
    if isinstance(name, int):
        return name if 0 <= name < 1 << 63 else otherwise
    digits = re.search(r"\d{1,9}$", name)
    return int(digits[0]) if digits else otherwise


def _paired(
    spans: Columns, chunks: list[ChunkColumns], counts: list[int], doubtful: DoubtfulTimes
) -> Chosen:
    """Set the lengths of spans that have a begin and an end event; return the spans that have both.

    As the format says, an end belongs to the last begin event of its thread that has none.

    Args:
        spans: The spans of all chunks.
        chunks: The chunks.
        counts: The number of spans of each.
        doubtful: Where to count.
    """
    kept = np.ones(len(spans["start"]), bool)
    edges, first = list[Edge](), 0
    for chunk, count in zip(chunks, counts, strict=True):
        edges += [one._replace(span=one.span + first) if one.span >= 0 else one
                  for one in chunk.edges]  # fmt: skip
        first += count
    open_ones = defaultdict[Any, list[Edge]](list)
    for edge in sorted(edges, key=operator.attrgetter("time")):  # stable: then as in the file
        stack = open_ones[edge.nest]
        if edge.begins:
            stack.append(edge)
            doubtful.asynchronous += edge.is_asynchronous
        elif not stack:
            doubtful.unpaired += not edge.is_asynchronous
        elif edge.is_asynchronous:
            doubtful.asynchronous_ns += edge.time - stack.pop().time
        else:
            begin = stack.pop()
            spans["length"][begin.span] = edge.time - begin.time
    left = [one.span for stack in open_ones.values() for one in stack if not one.is_asynchronous]
    kept[left] = False
    doubtful.unpaired += len(left)
    return kept


def _ended(
    spans: Columns, tables: dict[str, Table], chunks: list[ChunkColumns], kept: Chosen
) -> Columns:
    """Return the kept spans, with the length of marks whose start and end are two events.

    A span whose end is not in the trace is left out, as its length is unknown.
    """
    known = list(tables["details"])
    ids = np.flatnonzero(np.array([one.begins_only for one in known])[spans["details"]])
    threads = list(tables["thread"])
    ends = {(pid, number): time for chunk in chunks for pid, number, time in chunk.ends}
    for place in ids.tolist():
        pid, _ = threads[spans["thread"][place]]
        end = ends.get((pid, known[spans["details"][place]].range_id))
        kept[place] = end is not None
        if end is not None:
            spans["length"][place] = max(0, end - int(spans["start"][place]))
    return spans if kept.all() else {name: column[kept] for name, column in spans.items()}


def _concatenated(parts: list[Columns]) -> Columns:
    """Return the columns of all parts, which lose theirs: a large trace is in memory only once."""
    return {name: np.concatenate([part.pop(name) for part in parts]) for name in list(parts[0])}


def _ordered(columns: Columns, order: NDArray[np.int64]) -> Columns:
    """Return columns in an order, in place of their own."""
    return {name: columns.pop(name)[order] for name in list(columns)}


class Partner:
    """One of the two processes; a context that never leaves the other one waiting.

    Args:
        number: 0, or 1 for the process that the first one starts.
        other: The connection to the other process.
    """

    def __init__(self, number: int, other: Connection[Any, Any]) -> None:
        self._number = number
        self._other = other
        self._sent = self._received = False
        self._handing: threading.Thread | None = None

    def takes(self, chunk: int) -> bool:
        """Return whether this process digests a chunk, by its number from 0."""
        by_first = chunk < _AHEAD or chunk % 2 == 0
        return by_first == (self._number == 0)

    def swap(self, own: list[Any] | None) -> list[Any] | None:
        """Send our chunks, and return those of the other process; None means that one failed.

        The first one sends while the second one receives: a pipe cannot buffer the chunks.

        Raises:
            CaptureError: The other process has ended.
        """
        try:
            if self._number == 0:
                self._send(own)
            received: list[Any] | None = self._receive()
            if self._number == 1:
                self._send(own)
        except (EOFError, OSError) as error:
            self._sent = self._received = True
            raise CaptureError(_ENDED) from error
        return received

    def share(self, make: Callable[[], Found]) -> Found:
        """Return what only the second process makes, and sends to the first one.

        Raises:
            CaptureError: The other process has ended.
        """
        if self._number == 0:
            try:
                found: Found = pickle.loads(self._other.recv_bytes())  # noqa: S301 - from our own
            except (EOFError, OSError) as error:
                raise CaptureError(_ENDED) from error
            return found
        made = make()
        packed = pickle.dumps(made)
        self._handing = threading.Thread(target=self._hand_over, args=(packed,))
        self._handing.start()  # a pipe cannot buffer it, and the other one reads it later
        return made

    def _hand_over(self, packed: bytes) -> None:
        with contextlib.suppress(OSError):  # the other process has ended
            self._other.send_bytes(packed)

    def finish(self) -> None:
        """Wait until the other process has received what was made for it, or has ended."""
        if self._handing:
            self._handing.join()

    def _send(self, own: list[Any] | None) -> None:
        self._other.send(own)
        self._sent = True

    def _receive(self) -> list[Any] | None:
        packed = self._other.recv_bytes()
        self._received = True
        received: list[Any] | None = pickle.loads(packed)  # noqa: S301 - from our own process
        return received

    def __enter__(self) -> Partner:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Finish the swap, so that neither process waits for ever."""
        with contextlib.suppress(EOFError, OSError):  # the other process has ended
            if self._number == 0 and not self._sent:
                self._send(None)
            if not self._received:
                self._other.recv_bytes()
            if not self._sent:
                self._send(None)

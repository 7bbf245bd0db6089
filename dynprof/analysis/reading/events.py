"""One event of a trace, with the members that the analysis uses."""

from __future__ import annotations

import functools
import json
import math
import re
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

Names = frozenset[str]

OPERATORS: Names = frozenset({"cpu_op", "operator"})
LABELS: Names = frozenset({"user_annotation"})
"""Ranges that a script or torch sets on the host."""
MARKS: Names = frozenset({"mstx"})
"""Moments of ``dynprof.mstx``, and its ranges that may cross each other and threads."""
DEVICE_MARK = "dynprof_mark"
"""What host and device do for a mark on a stream, which is no work. The reader sets this name."""
RANGES: Names = frozenset({"nvtx", "roctx"})
"""Ranges that a script set for another profiler, as named by converters of its traces."""
FRAMES: Names = frozenset({"python_function"})
"""Kineto's frames of Python."""
CALLS: Names = frozenset({"fee"})
"""VizTracer's calls of Python."""
STEP_LABELS: Names = frozenset({"step"}) | LABELS | OPERATORS
"""The categories that may have labels of steps; ``step`` is dynprof's own."""
RECORDINGS: Names = frozenset({"trace"})
"""Kineto's own span around everything that it recorded."""
OVERHEADS: Names = frozenset({"overhead"})
"""Overhead of CUPTI and the driver; they do not report its thread."""
COLLECTIONS: Names = frozenset({"gc"})
"""Python's garbage collections, as dynprof records them."""

LAUNCHES: Names = frozenset(
    {
        "runtime", "cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
        "glow_runtime", "privateuse1_runtime", "privateuse1_driver", "cann_runtime",
    }
)  # fmt: skip
"""The host's calls of a device's runtime and driver."""
MTIA_ROWS: Names = frozenset({"mtia_ccp_events"})
"""All that the streams of an MTIA do. The reader tells copies and events apart by name."""
MTIA_COPY, MTIA_EVENT = "mtia_copy", "mtia_event"
KERNELS: Names = MTIA_ROWS | {"kernel", "hpu_op", "privateuse1_kernel"}
COPIES: Names = frozenset({"gpu_memcpy", "memcpy", "privateuse1_memcpy", MTIA_COPY})
MEMSETS: Names = frozenset({"gpu_memset", "memset", "privateuse1_memset"})
ON_DEVICE: Names = KERNELS | COPIES | MEMSETS
"""Everything that takes time of a device."""
IN_ORDER: Names = frozenset({"kernel"}) | COPIES | MEMSETS
"""Activities of a GPU; those of one stream run one after the other."""
SYNCHRONISATIONS: Names = frozenset({"cuda_sync"})
"""What a stream or the host waits for, reported by CUPTI."""
COUNTED = "cuda_profiler_range"
"""The category of CUPTI's counters, one event for each kernel."""
CANN_CALL = "cann_runtime"
"""A call of an NPU's runtime; torch_npu's analysis gives it no category."""
REPETITION = "dynprof_repetition"
"""What repeats or sums up other events, or is no work. The reader sets this name."""
KNOWN: Names = frozenset(
    {
        "gpu_user_annotation", "nvtx-kernel", "collective_comm", "host", "enqueue", "dequeue",
        COUNTED, DEVICE_MARK, MTIA_EVENT, REPETITION,
    }
).union(
    OPERATORS, LABELS, MARKS, RANGES, FRAMES, CALLS, STEP_LABELS, RECORDINGS, OVERHEADS,
    COLLECTIONS, LAUNCHES, ON_DEVICE, SYNCHRONISATIONS,
)  # fmt: skip
"""All categories whose meaning the analysis knows, also of events that it does not count."""
FLOWS: Names = frozenset({"async_npu", "cpu_to_cuda"})
"""Arrows from an operator to its work, in traces without correlation ids of it."""
_DIRECTIONS = {
    b'"HOST_TO_DEVICE"': "HtoD", b'"DEVICE_TO_HOST"': "DtoH", b'"DEVICE_TO_DEVICE"': "DtoD",
}  # fmt: skip
NONE = -1
"""Value of a number that an event does not have."""
_DIGITS = 19
"""Digits from which a number may not fit into 64 bits."""
_MAX_BYTES = 1 << 53
"""A larger size is damaged; sums of such sizes fit into 64 bits."""
_HALF_PAIR = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_TYPES: dict[Any, Any] = {int: int, str: str, float: (int, float, Decimal), int | str: (int, str)}
"""The accepted types of an argument, by its declared type."""


def listed(text: bytes) -> list[Any]:
    """Return a list; empty if the text is not a list, or is nested too deep."""
    try:
        found = msgspec.json.decode(text or b"[]")
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


class Args(msgspec.Struct, gc=False):
    """The arguments that Kineto gives its events."""

    external_id: int = msgspec.field(default=NONE, name="External id")
    external_id_in_1_8: int = msgspec.field(default=NONE, name="external id")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    dims_in_1_8: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input dims")
    group: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Name")
    members: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Process Group Ranks")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    strides: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Strides")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Concrete Inputs")
    sequence: int = msgspec.field(default=NONE, name="Sequence number")
    bytes: int = msgspec.field(default=0, name="Bytes")
    total: int = msgspec.field(default=0, name="Total Allocated")
    reserved: int = msgspec.field(default=0, name="Total Reserved")
    address: int = msgspec.field(default=NONE, name="Addr")
    device_type: int = msgspec.field(default=NONE, name="Device Type")
    device_id: int = msgspec.field(default=NONE, name="Device Id")
    device: int = NONE
    stream: int | str = NONE
    """A number for work on it; ROCm's calls have its address as text."""
    queue: int = msgspec.field(default=NONE, name="sycl queue")
    """The stream of Intel's devices."""
    correlation: int = NONE
    grid: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    block: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    registers: int = msgspec.field(default=NONE, name="registers per thread")
    shared_memory: int = msgspec.field(default=NONE, name="shared memory")
    occupancy: float = msgspec.field(default=NONE, name="est. achieved occupancy %")
    copied: int = msgspec.field(default=NONE, name="bytes")
    direction: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    """The direction of a copy of an MTIA, such as ``DEVICE_TO_HOST``; ``size`` has its bytes."""
    size: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    collective: str = msgspec.field(default="", name="Collective name")
    elements_in: int = msgspec.field(default=NONE, name="In msg nelems")
    elements_out: int = msgspec.field(default=NONE, name="Out msg nelems")
    group_size: int = msgspec.field(default=NONE, name="Group size")
    dtype: str = ""
    sender: int = msgspec.field(default=NONE, name="Src Rank")
    receiver: int = msgspec.field(default=NONE, name="Dst Rank")
    waits_for_stream: int = msgspec.field(default=NONE, name="wait_on_stream")
    waits_for_launch: int = msgspec.field(default=NONE, name="wait_on_cuda_event_record_corr_id")
    domain: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    kind: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    range: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))
    thread: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""))


class ForeignArgs(Args, gc=False):
    """The same, and those of other profilers. Each field makes reading slower."""

    connection: int = msgspec.field(default=NONE, name="connection_id")
    """The correlation of an NPU's work and the call that launched it."""
    task_type: str = msgspec.field(default="", name="Task Type")
    """The unit of an NPU that worked."""
    label: str = msgspec.field(default="", name="name")
    """The name of a process or thread, in metadata."""


class Details(NamedTuple):
    """Kineto's details of a device's work, other than its time; see the CUPTI manual.

    With ROCm the launch has grid, block and shared memory, not the kernel.

    Attributes:
        grid: The blocks of a kernel in each of three directions, as JSON.
        block: The threads of a block, likewise.
        registers: The registers of a thread.
        shared_memory: The shared memory of a block, in bytes.
        occupancy: The estimated occupancy, in percent of the warps that a processor can hold.
        copied: The bytes of a copy or a memset.
        collective: The kind of communication.
        elements_in: The elements of its message before.
        elements_out: The elements of its message after.
        group_size: The number of ranks that took part.
        dtype: The type of its elements.
        waits_for_stream: The stream that a stream waits for.
        waits_for_launch: The correlation of the call that recorded the event it waits for.
        sender: The rank that a message was received from.
        receiver: The rank that a message was sent to.
        domain: The domain of a mark or range of ``dynprof.mstx``, as JSON; empty for all else.
        range_id: The id of a range that may cross others.
        kind: What a range may cross, as JSON.
        begins_only: Whether its end is an event of its own.
        direction: The direction of a copy, such as ``DtoH``, if its name does not tell.
        task_type: The kind of task of an NPU, as its vendor names it.
    """

    grid: bytes = b""
    block: bytes = b""
    registers: int = NONE
    shared_memory: int = NONE
    occupancy: float = NONE
    copied: int = NONE
    collective: str = ""
    elements_in: int = NONE
    elements_out: int = NONE
    group_size: int = NONE
    dtype: str = ""
    waits_for_stream: int = NONE
    waits_for_launch: int = NONE
    sender: int = NONE
    receiver: int = NONE
    domain: bytes = b""
    range_id: int | str = NONE
    kind: bytes = b""
    begins_only: bool = False
    direction: str = ""
    task_type: str = ""


def details(a: Args, begun: int | str | None = None) -> Details:
    """Return the details of a device's work, or of a mark, from an event's arguments.

    Args:
        a: The arguments.
        begun: The number of a range whose end is an event of its own; None for all else.
    """
    number = _integer(a.range) if begun is None else begun
    direction = _DIRECTIONS.get(bytes(a.direction), "")
    copied = _integer(a.size) if direction and a.copied == NONE else a.copied
    if abs(copied) >= _MAX_BYTES:
        copied = NONE
    return Details(
        bytes(a.grid), bytes(a.block), a.registers, a.shared_memory, a.occupancy, copied,
        a.collective, a.elements_in, a.elements_out, a.group_size, a.dtype, a.waits_for_stream,
        a.waits_for_launch, a.sender, a.receiver, bytes(a.domain), number, bytes(a.kind),
        begun is not None, direction,
    )  # fmt: skip


def _integer(text: msgspec.Raw) -> int:
    digits = bytes(text)
    return int(digits) if digits.isdigit() and len(digits) < _DIGITS else NONE


class Event(msgspec.Struct, gc=False):
    """An event whose times fit into a float."""

    ph: str = ""
    name: str = ""
    cat: str = ""
    pid: int | str = 0
    tid: int | str = 0
    id: int | str = 0
    ts: float = math.nan
    dur: float = math.nan
    args: Args | None = None

    def start_ns(self) -> int:
        """Return its start in whole nanoseconds."""
        return round(self.ts * 1000)

    def mark_thread(self) -> int | str:
        """Return the thread that set a mark: the event itself is on a track of its own."""
        number = _integer(self.args.thread) if self.args else NONE
        return self.tid if number == NONE else number

    def length_ns(self) -> int:
        """Return its duration in whole nanoseconds; 0 for a moment."""
        return round(self.dur * 1000) if self.ph == "X" else 0


class Counters(NamedTuple):
    """The values of CUPTI's counters over one kernel.

    Attributes:
        kernel: The kernel's name, as CUPTI has it.
        order: The event's time, which tells only the order of kernels.
        values: The values by the counters' names.
    """

    kernel: str
    order: float
    values: dict[str, float]


def counters(chunk: bytes) -> list[Counters]:
    """Return the values of CUPTI's counters in a chunk.

    Raises:
        msgspec.MsgspecError: The chunk is not JSON.
    """
    if COUNTED.encode() not in chunk:  # of hardly any trace
        return []
    text = b"[%b]" % chunk
    try:
        events = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        events = decode_leniently(text, error)
    found = []
    for event in events:
        if isinstance(event, dict) and event.get("cat") == COUNTED:
            args, time = event.get("args"), event.get("ts")
            numbers = args.items() if isinstance(args, dict) else ()
            values = {name: one for name, one in numbers if type(one) in (int, float)}
            order = time if isinstance(time, (int, float)) else 0.0
            found.append(Counters(str(event.get("name", "")), order, values))
    return found


class ExactEvent(Event, gc=False):
    """An event of a trace without a base time: its microseconds need more digits than a float."""

    ts: Decimal = Decimal("NaN")  # type: ignore[assignment]

    def start_ns(self) -> int:
        """Return its start in whole nanoseconds."""
        return int(self.ts * 1000)


class ForeignEvent(ExactEvent, gc=False):
    """An event of a bare list, as other profilers and converters write."""

    args: ForeignArgs | None = None


def decode(chunk: bytes, kind: type[Event]) -> list[Event]:
    """Return the events of a chunk.

    Raises:
        msgspec.MsgspecError: It is not JSON.
    """
    text = b"".join((b"[", chunk, b"]"))
    try:
        try:
            return msgspec.json.decode(text, type=list[kind], strict=False)  # type: ignore[valid-type]
        except msgspec.ValidationError:
            return _one_by_one(text, kind)
    except msgspec.DecodeError as error:
        found = decode_leniently(text, error)
    return [_lenient(event, kind) for event in found]


def _one_by_one(text: bytes, kind: type[Event]) -> list[Event]:
    """Return the events of a chunk, some of which do not have Kineto's types."""
    typed = msgspec.json.Decoder(kind, strict=False)
    loose = msgspec.json.Decoder(float_hook=Decimal if issubclass(kind, ExactEvent) else None)

    def one(event: msgspec.Raw) -> Event:
        try:
            return typed.decode(event)
        except msgspec.ValidationError:
            return _lenient(loose.decode(event), kind)

    return [one(event) for event in msgspec.json.decode(text, type=list[msgspec.Raw])]


def decode_leniently(text: bytes, error: msgspec.DecodeError) -> list[Any]:
    """Decode JSON with Python's own reader, which accepts NaN; replace half surrogate pairs.

    Raises:
        msgspec.DecodeError: Python's reader fails too; this is the given error.
    """
    try:
        found = json.loads(_HALF_PAIR.sub(rb"\\ufffd", text), strict=False)
    except ValueError:
        raise error from None
    return list(found)


def _lenient(event: Any, kind: type[Event]) -> Event:
    """Return an event without arguments whose type differs from Kineto's."""
    if not isinstance(event, dict) or not isinstance(event.get("ph"), str):
        return kind()
    known = {"ph": event["ph"]} | {name: _text(event.get(name)) for name in ("name", "cat")}
    known |= {name: _number_or_text(event.get(name, 0)) for name in ("pid", "tid", "id")}
    times = {name: event[name] for name in ("ts", "dur") if name in event}
    try:
        found = msgspec.convert(known | times, kind, strict=False)
    except msgspec.ValidationError:
        found = msgspec.convert(known, kind)
    if isinstance(event.get("args"), dict):
        found.args = _arguments(event["args"], ForeignArgs if kind is ForeignEvent else Args)
    return found


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _number_or_text(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


@functools.cache
def _fields(kind: type[Args]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """Return the fields of an event's arguments; cached, as msgspec takes milliseconds."""
    return msgspec.structs.fields(kind)


def _arguments(given: dict[str, Any], kind: type[Args]) -> Any:
    found = kind()
    for field in _fields(kind):
        value = given.get(field.encode_name)
        if field.type is msgspec.Raw:
            value = msgspec.Raw(b"" if value is None else msgspec.json.encode(value))
        elif not isinstance(value, _TYPES[field.type]):
            continue
        setattr(found, field.name, float(value) if isinstance(value, Decimal) else value)
    return found

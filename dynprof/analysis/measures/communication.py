"""Communication: sizes, speeds and directions of collectives, messages and copies.

Algorithm bandwidth is the size of the operation divided by its time. Bus bandwidth is that times a
factor of the collective and the number of ranks, to compare it with the hardware's peak. The size
comes from Kineto's data of the collective's kernel, else from the shapes of the label around its
launch. If neither tells, it is unknown. NCCL's kernels for sends, receives and all-to-all have the
same name. The collective's name that Kineto writes tells them apart, else the operator or label
that launched them. Other ranks are not known here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN, Launches, innermost, launched_by
from dynprof.analysis.measures.timeline.steps import collectives
from dynprof.analysis.reading.events import COPIES, LABELS, NONE, OPERATORS, listed
from dynprof.analysis.reading.spans import parents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.events import Details
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

SEND_KIND, RECEIVE_KIND = "send", "receive"
PEER = "copy from one device to another"
UNEVEN = "all to all, uneven"
_KINDS = {
    "crossdevicereduce": "all reduce", "allreduce": "all reduce",
    "reducescatter": "reduce scatter", "allgather": "all gather",
    "alltoallv": UNEVEN, "alltoall": "all to all", "broadcast": "broadcast",
    "gather": "gather", "scatter": "scatter", "reduce": "reduce",
    "dispatch": UNEVEN, "combine": UNEVEN,
}  # fmt: skip
"""Kinds by a part of a name without underscores; the first match counts."""
_EXCHANGES = ("reduce scatter", "all gather", "all to all", "gather", "scatter")
"""Collectives of which each rank already has one part of the data."""
_GATHERS = ("all gather", "gather")
_LABELS = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "hccl:")
_MESSAGE = re.compile(rf"(?:{'|'.join(_LABELS)})_?(send|recv)\b")
_BYTES = {
    1: ("byte", "char", "bool", "unsigned char", "signed char"),
    2: ("short", "half", "bfloat16", "uint16", "c10::half", "c10::bfloat16", "short int"),
    4: ("int", "float", "uint32", "complexhalf", "unsigned int"),
    8: ("long", "double", "uint64", "complexfloat", "long int", "c10::complex<float>"),
    16: ("complexdouble", "c10::complex<double>"),
}
_SIZES = {name: size for size, names in _BYTES.items() for name in names}
NO_GROUP = "N/A"
OTHER, SEND, RECEIVE, UNKNOWN_DIRECTION = range(4)
"""Directions of a span: no message or several at once; from this rank; to it; unknown."""
_OPERATION = re.compile(r"(?:c10d|nccl|rccl|xccl|hccl|gloo|mpi|ucc)::?_*(\w*)", re.IGNORECASE)
_SENDING, _RECEIVING = ("send", "isend"), ("recv", "receive", "irecv")
_BOTH = re.compile(r"send_?recv|send_?receive|batch_isend", re.IGNORECASE)
LARGE = 1_000_000
"""Bytes from which a copy counts as large. Smaller ones take about as long as an empty copy, so
their speed says nothing about a link."""
_NAME = re.compile(r"Memcpy (\w+)(?: \((\w+) -> (\w+)\))?")


class Message(NamedTuple):
    """Properties of a collective or message.

    Attributes:
        kind: Its kind; empty if the trace does not tell.
        size: The bytes of the operation, as nccl-tests counts them; -1 if unknown.
        members: How many ranks took part; -1 if unknown.
        dtype: The type of its elements, as the trace names it.
        sender: The other rank, if it sent the message; -1 if unknown.
        receiver: The other rank, if it received the message; -1 if unknown.
    """

    kind: str = ""
    size: int = UNKNOWN
    members: int = UNKNOWN
    dtype: str = ""
    sender: int = UNKNOWN
    receiver: int = UNKNOWN

    @property
    def factor(self) -> float | None:
        """The ratio of bus bandwidth to algorithm bandwidth; None if unknown."""
        if self.kind in ("broadcast", "reduce", SEND_KIND, RECEIVE_KIND, PEER):
            return 1.0
        if self.members < 2 or self.kind not in ("all reduce", *_EXCHANGES):
            return None
        return (1 + (self.kind == "all reduce")) * (self.members - 1) / self.members


@dataclass(frozen=True)
class Messages:
    """The collectives of a trace.

    Attributes:
        span: Their indices among its spans, in order of start.
        message: Index of each in :attr:`known`.
        known: Their distinct properties.
    """

    span: Numbers
    message: Numbers
    known: list[Message]

    def without(self, left_out: NDArray[np.bool_]) -> Messages:
        """Return the others of them, given a mask of the trace's spans."""
        kept = ~left_out[self.span]
        return Messages(self.span[kept], self.message[kept], self.known)


@dataclass(frozen=True)
class Traffic:
    """All collectives of one kind, group, type and size; times in ns.

    The time is that of the kernels. It begins when this rank arrives, so it includes the wait for
    the other ranks. The shortest includes the least wait.

    Attributes:
        device: The device's number; -1 for the host.
        group: The process group as the trace names it.
        message: Their common properties.
        count: How many ran.
        total: How long they took together.
        shortest: How long the shortest took.
    """

    device: int
    group: str
    message: Message
    count: int
    total: int
    shortest: int

    def algorithm(self, time: int) -> float | None:
        """Return the algorithm bandwidth of one that takes ``time`` ns, in GB/s."""
        return self.message.size / time if self.message.size > 0 and time > 0 else None

    def bus(self, time: int) -> float | None:
        """Return the bus bandwidth of one that takes ``time`` ns, in GB/s."""
        bandwidth, factor = self.algorithm(time), self.message.factor
        return None if bandwidth is None or factor is None else bandwidth * factor


def messages(trace: Trace, started: Launches) -> Messages:
    """Return the properties of each collective of a trace."""
    chosen = collectives(trace)
    labels = _labels(trace, started, chosen)
    inside = labels != UNKNOWN
    columns = np.full((len(chosen), 4), UNKNOWN, np.int64)
    columns[:, 0] = trace.spans["details"][chosen]
    columns[inside, 1] = trace.spans["name"][labels[inside]]
    columns[inside, 2] = trace.spans["dims"][labels[inside]]
    columns[:, 3] = trace.spans["name"][chosen]
    kinds, place = np.unique(columns, axis=0, return_inverse=True)
    members = _only_group(trace)
    names, dims, details = (trace.tables[name] for name in ("name", "dims", "details"))
    known = []
    for detail, name, shapes, own in kinds.tolist():
        if details[detail].collective:
            known.append(_from_details(details[detail]))
        elif details[detail].copied >= 0:
            known.append(Message(PEER, details[detail].copied or UNKNOWN))
        elif name != UNKNOWN:
            known.append(_from_label(names[name], dims[shapes], members))
        else:
            known.append(Message(kind_of(names[own])))
    return Messages(chosen, place.reshape(-1), known)


def traffic(trace: Trace, found: Messages) -> list[Traffic]:
    """Return a row for each kind of collective, the most time first."""
    spans = trace.spans
    if not len(found.span):
        return []
    keys = np.stack(
        [spans["device"][found.span], spans["group"][found.span], found.message], axis=1
    )
    rows, place = np.unique(keys, axis=0, return_inverse=True)
    length, place = spans["length"][found.span], place.reshape(-1)
    total = np.zeros(len(rows), np.int64)
    np.add.at(total, place, length)
    shortest = np.full(len(rows), np.iinfo(np.int64).max)
    np.minimum.at(shortest, place, length)
    counts = np.bincount(place, minlength=len(rows))
    numbers = (counts.tolist(), total.tolist(), shortest.tolist())
    made = [
        Traffic(device, group_name(trace, group), found.known[message], *row)
        for (device, group, message), *row in zip(rows.tolist(), *numbers, strict=True)
    ]
    return sorted(made, key=lambda row: -row.total)


def group_name(trace: Trace, code: int) -> str:
    """Return the name and the members of a process group, as the trace has them."""
    words: tuple[bytes, bytes] = trace.tables["group"][code]
    return " ".join(word.decode(errors="replace").strip('"') for word in words if word)


def kind_of(name: str) -> str:
    """Return the kind of collective by its name; empty if the name does not tell."""
    plain = name.lower().replace("_", "")
    if "sparse" in plain or "sendrecv" in plain:
        return ""
    if plain in ("send", "recv"):
        return SEND_KIND if plain == "send" else RECEIVE_KIND
    return next((kind for mark, kind in _KINDS.items() if mark in plain), "")


def _labels(trace: Trace, started: Launches, chosen: Numbers) -> Numbers:
    """Return the label of each collective: itself on the host, else that around its launch."""
    is_label, spans = trace.category(LABELS), trace.spans
    result = np.where(is_label[chosen], chosen, UNKNOWN)
    selected = np.flatnonzero(is_label & trace.named(lambda name: name.startswith(_LABELS)))
    on_device = np.flatnonzero(result == UNKNOWN)
    if not len(selected) or not len(on_device):
        return result
    call = started.call[np.searchsorted(started.work, chosen[on_device])]
    on_device, call = on_device[call != UNKNOWN], call[call != UNKNOWN]
    outer = parents(*(spans[name][selected] for name in ("start", "length", "thread")))
    around = innermost(trace, selected, outer, call)
    result[on_device] = np.where(around == UNKNOWN, UNKNOWN, selected[around])
    return result


def _only_group(trace: Trace) -> int:
    """Return the number of ranks of a collective if there is one group only; -1 if unknown."""
    info = trace.members.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) and info.get("pg_count") == 1 else None
    return size if isinstance(size, int) and 0 < size < 1 << 31 else UNKNOWN


def _from_details(details: Details) -> Message:
    """Return the properties that Kineto writes of a collective's kernel."""
    kind, each = kind_of(details.collective), _SIZES.get(details.dtype.lower(), 0)
    if details.dtype.lower().startswith("float8"):
        each = 1
    if (
        kind == "all to all" and details.elements_in != details.elements_out
    ):  # it works on lists of tensors
        kind = UNEVEN
    elements = max(details.elements_in, details.elements_out)
    size = elements * each if kind and each and elements > 0 else UNKNOWN
    size = size if size < 1 << 63 else UNKNOWN
    return Message(kind, size, details.group_size, details.dtype, details.sender, details.receiver)


def _from_label(name: str, shapes: tuple[bytes, ...], members: int) -> Message:
    """Return the properties from a label such as ``nccl:all_reduce`` and its input shapes."""
    message = _MESSAGE.match(name.lower())
    kind = kind_of(message[1] if message else name.partition(":")[2])
    size, dtype = _input_bytes(*shapes[:2])
    if kind in _GATHERS:
        size = size * members if members > 0 and size > 0 else UNKNOWN
    if kind in ("", "scatter", UNEVEN):  # this rank's input is not the whole operation
        size = UNKNOWN
    if kind == "all to all":  # an uneven one has the same label
        members = UNKNOWN
    return Message(kind, size, members, dtype)


def _input_bytes(dims: bytes, types: bytes) -> tuple[int, str]:
    """Return the bytes of tensors, and their type; -1 and empty if any of them is unknown."""
    shapes, names = listed(dims), listed(types)
    sizes = [_tensor_bytes(shape, name) for shape, name in zip(shapes, names, strict=False)]
    if not sizes or len(shapes) != len(names) or None in sizes or len(set(names)) != 1:
        return UNKNOWN, ""
    return sum(size or 0 for size in sizes) or UNKNOWN, names[0]


def _tensor_bytes(shape: Any, name: Any) -> int | None:
    each = _SIZES.get(name.lower()) if isinstance(name, str) else None
    if each is None or not isinstance(shape, list):
        return None
    for length in shape:
        if not isinstance(length, int) or length < 0:
            return None
        each *= length
    return each if each < 1 << 63 else None


class Dtype(NamedTuple):
    """A type of elements.

    Attributes:
        bytes: Bytes of one element; None if the type is unknown.
        vendors: The vendor's number for the type.
    """

    bytes: int | None
    vendors: int


NO_DTYPE = Dtype(None, 65534)
_DTYPES = {
    "Char": Dtype(1, 0), "Short": Dtype(2, 1), "Int": Dtype(4, 2), "Half": Dtype(2, 3),
    "Float": Dtype(4, 4), "Long": Dtype(8, 5), "UInt64": Dtype(8, 6), "Byte": Dtype(1, 7),
    "UInt16": Dtype(2, 8), "UInt32": Dtype(4, 9), "Double": Dtype(8, 10), "BFloat16": Dtype(2, 11),
    "Float8_e4m3fn": Dtype(1, 15), "Float8_e5m2": Dtype(1, 16), "Float8_e8m0fnu": Dtype(1, 17),
    "Bool": Dtype(1, 65534),
}  # fmt: skip
"""Types by torch's names."""


def dtype_of(details: Details) -> Dtype:
    """Return the type of a message's elements."""
    return _DTYPES.get(details.dtype, NO_DTYPE)


def size_of(details: Details) -> int | None:
    """Return the bytes of a rank's input; None if the trace does not tell."""
    each = dtype_of(details).bytes
    return None if each is None or details.elements_in == NONE else each * details.elements_in


def reported_group(trace: Trace, span: int) -> str:
    """Return the name of the group that communicated; ``N/A`` if the trace has none."""
    name, members = trace.tables["group"][trace.spans["group"][span]]
    return _text(name) or _text(members) or NO_GROUP


def _text(written: bytes) -> str:
    """Return a JSON value as text; empty if it has no content."""
    try:
        found = json.loads(written) if written else None
        return str(found) if found else ""
    except (ValueError, RecursionError):
        return written.decode(errors="replace")


def directions(trace: Trace, started: Launches) -> Numbers:
    """Return the direction of each span: ``SEND``, ``RECEIVE``, ``UNKNOWN_DIRECTION`` or ``OTHER``.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """
    spans, names = trace.spans, trace.tables["name"]
    result = np.full(len(spans["start"]), OTHER, np.int64)
    by_operation = np.array([_operation_direction(name) for name in names] or [OTHER], np.int64)
    labels = trace.category(LABELS)
    result[labels] = by_operation[spans["name"][labels]]
    kernels = np.flatnonzero(trace.communication)
    if len(kernels):
        by_name = np.array([_kernel_direction(name) for name in names], np.int64)
        result[kernels] = by_name[spans["name"][kernels]]
        _by_collective(trace, kernels, result)
        _by_launch(trace, started, by_operation, result)
    return result


def _operation_direction(name: str) -> int:
    """Return the direction that the name of an operator or label tells."""
    found = _OPERATION.match(name)
    return _verb_direction(found[1].lower()) if found else OTHER


def _verb_direction(word: str) -> int:
    if _BOTH.match(word):
        return OTHER
    return SEND if word.startswith(_SENDING) else RECEIVE if word.startswith(_RECEIVING) else OTHER


def _kernel_direction(name: str) -> int:
    """Return the direction that a kernel's name tells."""
    lower = name.lower()
    if lower.startswith("hcom_batchsendrecv"):
        return OTHER
    if _BOTH.search(lower):
        return UNKNOWN_DIRECTION
    sends, receives = "send" in lower, "recv" in lower or "receive" in lower
    return SEND if sends else RECEIVE if receives else OTHER


def _by_collective(trace: Trace, kernels: Numbers, result: Numbers) -> None:
    """Set the direction by the collective's name, if there is one."""
    codes = [
        _verb_direction(details.collective.lower()) if details.collective else UNKNOWN_DIRECTION
        for details in trace.tables["details"]
    ]
    direction = np.array(codes, np.int64)[trace.spans["details"][kernels]]
    result[kernels] = np.where(direction == UNKNOWN_DIRECTION, result[kernels], direction)


def _by_launch(trace: Trace, started: Launches, by_operation: Numbers, result: Numbers) -> None:
    """Set a still unknown direction by the innermost operator or label that launched the kernel."""
    spans = trace.spans
    left = result[started.work] == UNKNOWN_DIRECTION
    if not left.any():
        return
    asking = trace.category(OPERATORS, LABELS)
    asking &= trace.named(lambda name: _OPERATION.match(name) is not None)
    chosen = np.flatnonzero(asking)
    parent = parents(*(spans[name][chosen] for name in ("start", "length", "thread")))
    by = launched_by(trace, Launches(started.work[left], started.call[left]), chosen, parent)
    known = by != UNKNOWN
    result[started.work[left][known]] = by_operation[spans["name"][chosen[by[known]]]]


@dataclass(frozen=True)
class Copying:
    """All copies of a device in one direction; times in ns.

    Attributes:
        device: The device's number.
        direction: Such as ``HtoD``, or the name of the copies if it contains no direction.
        source: The kind of memory they read, such as ``Pageable``; empty if unknown.
        target: The kind of memory they write; empty if unknown.
        count: Number of copies.
        time: How long they took.
        sized: Number of copies of known size.
        size: The bytes of those.
        sized_time: How long those took.
        large: Number of copies of at least :data:`LARGE` bytes.
        large_size: The bytes of those.
        large_time: How long those took.
    """

    device: int
    direction: str
    source: str
    target: str
    count: int
    time: int
    sized: int
    size: int
    sized_time: int
    large: int
    large_size: int
    large_time: int

    @property
    def bandwidth(self) -> float | None:
        """The bandwidth in GB/s; None if no size is known."""
        return self.size / self.sized_time if self.sized and self.sized_time else None

    @property
    def large_bandwidth(self) -> float | None:
        """The bandwidth of the large copies alone, which are slow only if the link is."""
        return self.large_size / self.large_time if self.large_time else None


def copies(trace: Trace) -> list[Copying]:
    """Return a row for each direction on each device, the most time first."""
    spans, chosen = trace.spans, np.flatnonzero(trace.category(COPIES))
    if not len(chosen):
        return []
    details = trace.tables["details"]
    sizes = np.array([detail.copied for detail in details], np.int64)
    directions = list(dict.fromkeys(detail.direction for detail in details))
    codes = np.array([directions.index(detail.direction) for detail in details], np.int64)
    size, length = sizes[spans["details"][chosen]], spans["length"][chosen]
    direction = codes[spans["details"][chosen]]
    keys = np.stack([spans["device"][chosen], spans["name"][chosen], direction], axis=1)
    rows, place = np.unique(keys, axis=0, return_inverse=True)
    place = place.reshape(-1)
    sized, big = size >= 0, size >= LARGE
    sums = []
    for values in (
        np.ones_like(size), length, sized, np.where(sized, size, 0), length * sized,
        big, np.where(big, size, 0), length * big,
    ):  # fmt: skip
        sums.append(np.zeros(len(rows), np.int64))
        np.add.at(sums[-1], place, values)
    found = [
        Copying(device, *_parts(trace.tables["name"][name], directions[known]), *numbers)
        for (device, name, known), *numbers in zip(
            rows.tolist(), *(s.tolist() for s in sums), strict=True
        )
    ]
    return sorted(found, key=lambda row: (-row.time, row.direction))


def _parts(name: str, direction: str) -> tuple[str, str, str]:
    match = _NAME.match(name)
    if match is None:
        return direction or name, "", ""
    return match[1], match[2] or "", match[3] or ""

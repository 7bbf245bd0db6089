"""Sizes and speeds of collectives, as the bandwidths of nccl-tests.

Algorithm bandwidth is the size of the operation divided by its time. Bus bandwidth is that times a
factor of the collective and the number of ranks, to compare it with the hardware's peak. The size
comes from Kineto's data of the collective's kernel, else from the shapes of the label around its
launch. If neither tells, it is unknown.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost
from dynprof.analysis.measures.timeline.steps import collectives
from dynprof.analysis.reading.events import LABELS, NONE, listed
from dynprof.analysis.reading.spans import parents

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.events import Details
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]


SEND, RECEIVE = "send", "receive"
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
        if self.kind in ("broadcast", "reduce", SEND, RECEIVE, PEER):
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
        return SEND if plain == "send" else RECEIVE
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

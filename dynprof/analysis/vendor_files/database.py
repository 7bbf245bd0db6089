"""The vendor's SQLite database, with the vendor's tables, columns and types.

Names, columns and numbers are those of CANN's msprof. Values that only an NPU has are the vendor's
number for none, or ``N/A``.
"""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from dynprof.analysis.measures.communication import RECEIVE, SEND, dtype_of, reported_group, size_of
from dynprof.analysis.measures.kernel_shapes import blocks, directions, launch_configurations
from dynprof.analysis.measures.timeline.kernels import cores
from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by
from dynprof.analysis.measures.timeline.steps import collectives
from dynprof.analysis.reading.columns import Table
from dynprof.analysis.reading.events import (
    CALLS,
    COLLECTIONS,
    COPIES,
    FRAMES,
    KERNELS,
    LABELS,
    OPERATORS,
)
from dynprof.analysis.reading.events import NONE as NOT_RECORDED
from dynprof.analysis.vendor_files.tables import COMPONENT, calls_of, includes, layer, shapes_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from dynprof.analysis.measures.measured_trace import MeasuredTrace

_COPIES = {"HtoH": 0, "HtoD": 1, "DtoH": 2, "DtoD": 3, "PtoP": 3}
"""Kineto's names of copies, with the vendor's numbers. A copy between devices has that of DtoD."""
_COPY = re.compile(r"\b([HDP]to[HDP])\b")
Columns = tuple[tuple[str, str], ...]
"""Names and types of columns."""
INTEGER, NUMERIC, TEXT = "INTEGER", "NUMERIC", "TEXT"
NONE = 4294967295
"""The vendor's number for no value."""
NOT_KNOWN = "N/A"
NO_TYPE = 65534
"""The vendor's number of an unknown link, transport or type."""
_ENUM = (("id", INTEGER), ("name", TEXT))
LAYERS = {20000: "acl", 15000: "model", 10000: "node", 5500: "communication", 5000: "runtime"}
"""The vendor's numbers of the layers of calls."""
_ODD = {255: "RESERVED", NO_TYPE: NOT_KNOWN, 65535: "INVALID_TYPE"}
ENUMS: dict[str, dict[int, str]] = {
    "ENUM_MSTX_EVENT_TYPE": dict(enumerate(("marker", "push/pop", "start/end", "marker_ex"))),
    "ENUM_MEMCPY_OPERATION": {
        0: "host to host", 1: "host to device", 2: "device to host", 3: "device to device",
        4: "managed memory", 5: "addr device to device", 6: "host to device ex",
        7: "device to host ex", 65535: "other",
    },
    "ENUM_HCCL_DATA_TYPE": {
        **dict(enumerate(("INT8", "INT16", "INT32", "FP16", "FP32", "INT64", "UINT64", "UINT8",
                          "UINT16", "UINT32", "FP64", "BFP16", "INT128"))),
        14: "HIF8", 15: "FP8E4M3", 16: "FP8E5M2", 17: "FP8E8M0", **_ODD,
    },
    "ENUM_HCCL_LINK_TYPE": {
        **dict(enumerate(("ON_CHIP", "HCCS", "PCIE", "ROCE", "SIO", "HCCS_SW", "STANDARD_ROCE",
                          "UB", "UBoE"))), **_ODD,
    },
    "ENUM_HCCL_TRANSPORT_TYPE": {
        **dict(enumerate(("SDMA", "RDMA", "LOCAL", "UB", "ROCE"))), **_ODD,
    },
    "ENUM_HCCL_RDMA_TYPE": {0: "RDMA_SEND_NOTIFY", 1: "RDMA_SEND_PAYLOAD", **_ODD},
}  # fmt: skip
TABLES: dict[str, Columns] = {
    "STRING_IDS": (("id", INTEGER), ("value", TEXT)),
    "PYTORCH_API": (
        ("startNs", TEXT), ("endNs", TEXT), ("globalTid", INTEGER), ("connectionId", INTEGER),
        ("name", INTEGER), ("sequenceNumber", INTEGER), ("fwdThreadId", INTEGER),
        ("inputDtypes", INTEGER), ("inputShapes", INTEGER), ("callchainId", INTEGER),
        ("type", INTEGER),
    ),
    "CONNECTION_IDS": (("id", INTEGER), ("connectionId", INTEGER)),
    "PYTORCH_CALLCHAINS": (("id", INTEGER), ("stack", INTEGER), ("stackDepth", INTEGER)),
    "ENUM_API_TYPE": (("id", INTEGER), ("name", TEXT)),
    "MEMORY_RECORD": (
        ("component", INTEGER), ("timestamp", INTEGER), ("totalAllocated", INTEGER),
        ("totalReserved", INTEGER), ("totalActive", INTEGER), ("streamPtr", INTEGER),
        ("deviceId", INTEGER),
    ),
    "OP_MEMORY": (
        ("name", INTEGER), ("size", INTEGER), ("allocationTime", INTEGER),
        ("releaseTime", INTEGER), ("activeReleaseTime", INTEGER), ("duration", INTEGER),
        ("activeDuration", INTEGER), ("allocationTotalAllocated", INTEGER),
        ("allocationTotalReserved", INTEGER), ("allocationTotalActive", INTEGER),
        ("releaseTotalAllocated", INTEGER), ("releaseTotalReserved", INTEGER),
        ("releaseTotalActive", INTEGER), ("streamPtr", INTEGER), ("deviceId", INTEGER),
    ),
    "STEP_TIME": (("id", INTEGER), ("startNs", INTEGER), ("endNs", INTEGER)),
    "GC_RECORD": (("startNs", INTEGER), ("endNs", INTEGER), ("globalTid", INTEGER)),
    "RANK_DEVICE_MAP": (("rankId", INTEGER), ("deviceId", INTEGER)),
    "HOST_INFO": (("hostUid", TEXT), ("hostName", TEXT)),
    "META_DATA": (("name", TEXT), ("value", TEXT)),
}  # fmt: skip
Rows = Iterable[tuple[Any, ...]]
API_TYPES = {50001: "op", 50002: "queue", 50003: "trace", 50004: "mstx"}
"""The vendor's numbers of API types: operators are ``op``, Python frames ``trace``."""
_OPERATOR, _FRAME, _MARK = 50001, 50003, 50004


def write_database(measured: MeasuredTrace, path: Path) -> None:
    """Write the database of a trace, without empty tables.

    Raises:
        OSError: The file cannot be written.
    """
    strings = Table()
    chains: dict[str, int] = Table()
    tables: dict[str, Rows] = {
        "PYTORCH_API": _apis(measured, strings, chains),
        "CONNECTION_IDS": _connections(measured),
        "MEMORY_RECORD": _memory_records(measured, strings),
        "OP_MEMORY": _operator_memory(measured, strings),
        "STEP_TIME": _steps(measured),
        "GC_RECORD": _collections(measured),
        "RANK_DEVICE_MAP": [(measured.rank, _device(measured))],
        "HOST_INFO": [("", measured.host)],
        "META_DATA": [(key, json.dumps(value)) for key, value in measured.metadata.items()],
        "ENUM_API_TYPE": list((LAYERS | API_TYPES).items()),
    }
    tables |= device_rows(measured, strings, _global_threads(measured))
    tables["PYTORCH_CALLCHAINS"] = _callchains(chains, strings)
    tables["STRING_IDS"] = _strings(strings)
    fill_database(path, tables, {**TABLES, **DEVICE_TABLES})


def fill_database(path: Path, tables: Mapping[str, Rows], described: Mapping[str, Columns]) -> None:
    """Write tables in their order, without empty ones.

    Args:
        path: The file to write.
        tables: The rows of each table; read only after the tables before it are written.
        described: The columns of each table, and their types.

    Raises:
        OSError: The file cannot be written.
    """
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode=OFF")
        database.execute("PRAGMA synchronous=OFF")
        for name, rows in tables.items():
            _fill(database, name, described[name], rows)


def _fill(database: sqlite3.Connection, name: str, columns: Columns, rows: Rows) -> None:
    """Write a table, unless it is empty."""
    ahead = iter(rows)
    first = next(ahead, None)
    if first is None:
        return
    described = ", ".join(f'"{column}" {kind}' for column, kind in columns)
    database.execute(f"CREATE TABLE {name} ({described})")
    places = ", ".join("?" * len(columns))
    database.executemany(f"INSERT INTO {name} VALUES ({places})", chain([first], ahead))  # noqa: S608 - our own names


def _global_threads(measured: MeasuredTrace) -> list[int]:
    """Return the vendor's number of each thread, which has its process in the high half."""
    found = []
    for pid, tid in measured.trace.tables["thread"]:
        numbers = [n if isinstance(n, int) else crc32(n.encode()) for n in (pid, tid)]
        found.append((numbers[0] & 0x7FFFFFFF) << 32 | (numbers[1] & 0xFFFFFFFF))
    return found


def _apis(measured: MeasuredTrace, strings: Table, chains: dict[str, int]) -> Rows:
    trace, base = measured.trace, measured.base_ns
    threads, names = _global_threads(measured), trace.tables["name"]
    dims = [(strings[shapes_text(t)], strings[shapes_text(d)]) for d, t, *_ in trace.tables["dims"]]
    kinds = [
        _FRAME if c in FRAMES else _MARK if c in LABELS else _OPERATOR
        for c in trace.tables["category"]
    ]
    stacks = measured.call_stacks
    chain_of = {int(s): stacks(i) for i, s in enumerate(measured.operators.span.tolist())}
    chosen = np.flatnonzero(trace.category(OPERATORS, LABELS, CALLS, FRAMES))
    columns = ("start", "length", "thread", "name", "sequence", "dims", "category")
    rows = zip(chosen.tolist(), *(trace.spans[c][chosen].tolist() for c in columns), strict=True)
    for place, start, length, thread, name, sequence, shape, category in rows:
        types, shapes = dims[shape]
        stack = chain_of.get(place)
        began = base + start
        yield (
            str(began),
            str(began + length),
            threads[thread],
            place,
            strings[names[name]],
            sequence if sequence >= 0 else NONE,
            NONE,
            types,
            shapes,
            chains[stack] if stack else NONE,
            kinds[category],
        )


def _connections(measured: MeasuredTrace) -> list[tuple[Any, ...]]:
    """Return pairs of an operator and the correlation of a launch that it made.

    A launch of a graph starts many kernels, but has one row.
    """
    trace, started, found = measured.trace, measured.launches, measured.operators
    by = launched_by(trace, started, found.span, found.parent)
    known = by != UNKNOWN
    launch = correlations(measured, started.work[known])
    both = zip(found.span[by[known]].tolist(), launch, strict=True)
    return [pair for pair in dict.fromkeys(both) if pair[1] != NONE]


def _strings(strings: Table) -> Rows:
    for text, number in strings.items():
        yield number, text


def _callchains(chains: dict[str, int], strings: Table) -> Rows:
    for stack, number in chains.items():
        for depth, frame in enumerate(stack.split(";\r\n")):
            yield number, strings[frame], depth


def _memory_records(measured: MeasuredTrace, strings: Table) -> Rows:
    memory, base = measured.trace.memory, measured.base_ns
    component = strings[COMPONENT]
    columns = zip(
        *(memory[c].tolist() for c in ("time", "total", "reserved", "device_id")), strict=True
    )
    return ((component, base + t, a, r, a, NONE, d) for t, a, r, d in columns)


def _operator_memory(measured: MeasuredTrace, strings: Table) -> Rows:
    base = measured.base_ns
    for made in measured.allocations:
        released = None if made.released is None else base + made.released
        lasted = None if made.released is None else made.released - made.allocated
        then, after = made.total_then, made.total_after
        _, _, number = made.device.partition(":")
        yield (
            strings[made.operator],
            made.size,
            base + made.allocated,
            released,
            released,
            lasted,
            lasted,
            then,
            made.reserved_then,
            then,
            after,
            made.reserved_after,
            after,
            NONE,
            int(number) if number else -1,
        )


def _steps(measured: MeasuredTrace) -> list[tuple[Any, ...]]:
    base = measured.base_ns
    steps = measured.marked
    return [(n, base + b, base + b + length) for n, b, length in steps if n is not None]


def _collections(measured: MeasuredTrace) -> list[tuple[Any, ...]]:
    trace, base = measured.trace, measured.base_ns
    chosen = np.flatnonzero(trace.category(COLLECTIONS))
    threads = _global_threads(measured)
    columns = (trace.spans[c][chosen].tolist() for c in ("start", "length", "thread"))
    return [(base + s, base + s + n, threads[t]) for s, n, t in zip(*columns, strict=True)]


def _device(measured: MeasuredTrace) -> int:
    device = measured.first_device
    return device if isinstance(device, int) else -1


def device_rows(
    measured: MeasuredTrace, strings: Table, threads: list[int]
) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of each table that the trace's level has.

    Args:
        measured: The trace.
        strings: The number of each text; new texts are added.
        threads: The vendor's number of each thread.
    """
    found: dict[str, list[tuple[Any, ...]]] = {
        "MSTX_EVENTS": list(_marks(measured, strings, threads))
    }
    if includes(measured, "Level0"):
        found |= {
            "TASK": list(_tasks(measured, strings)),
            "COMPUTE_TASK_INFO": list(_kernels(measured, strings)),
            "COMMUNICATION_OP": list(_collectives(measured, strings)),
            "MEMCPY_INFO": list(_copies(measured)),
            "NPU_INFO": _devices(measured),
        }
    if includes(measured, "Level1"):
        found["COMMUNICATION_TASK_INFO"] = list(_messages(measured, strings))
        found["CANN_API"] = list(_calls(measured, strings, threads))
    found["SESSION_TIME_INFO"] = _session(measured)
    return found | {name: list(values.items()) for name, values in ENUMS.items()}


def correlations(measured: MeasuredTrace, places: Any) -> list[int]:
    """Return the ids that join spans with the calls that launched them; NONE if there is none."""
    found = measured.trace.spans["correlation"][places]
    joined: list[int] = np.where(found < 0, NONE, found).tolist()
    return joined


def _times(measured: MeasuredTrace, places: Any) -> Iterable[tuple[int, int]]:
    begin = measured.base_ns + measured.trace.spans["start"][places]
    return zip(
        begin.tolist(), (begin + measured.trace.spans["length"][places]).tolist(), strict=True
    )


def _tasks(measured: MeasuredTrace, strings: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the work of devices, numbered in its order."""
    trace, work, call = measured.trace, measured.launches.work, measured.launches.call
    fits = [as_int64(pid) for pid, _ in trace.tables["thread"]]
    pids = [NONE if pid is None else pid for pid in fits]
    caller = np.where(call == UNKNOWN, 0, trace.spans["thread"][call])
    pid = np.where(call == UNKNOWN, NONE, np.array(pids or [NONE])[caller])
    columns = (trace.spans[name][work].tolist() for name in ("device", "stream"))
    rows = zip(_times(measured, work), correlations(measured, work), pid.tolist(),
               cores(trace, work), *columns, strict=True)  # fmt: skip
    for number, (times, joined, process, core, device, stream) in enumerate(rows):
        yield (
            *(*times, device, joined, number, process, strings[core], NONE),
            *(stream if stream >= 0 else NONE, NONE, NONE),
        )


def _kernels(measured: MeasuredTrace, strings: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the kernels that computed. Their shapes are unknown: only operators have shapes."""
    trace, work = measured.trace, measured.launches.work
    chosen = trace.category(KERNELS)[work] & ~trace.communication[work]
    names, unknown, kind = trace.tables["name"], strings[NOT_KNOWN], strings["KERNEL"]
    grids = [tuple(strings[_joined(d)] for d in (one.grid, one.block))
             for one in trace.tables["details"]]  # fmt: skip
    code = launch_configurations(trace, measured.launches)
    columns = (trace.spans["name"][work], blocks(trace, measured.launches), code)
    rows = zip(np.flatnonzero(chosen).tolist(), *(c[chosen].tolist() for c in columns), strict=True)
    for number, name, count, details in rows:
        text, block_count = strings[names[name]], NONE if count == UNKNOWN else count
        nothing = (unknown,) * 9
        yield (text, number, block_count, NONE, kind, text, *nothing, *grids[details])


def _joined(numbers: bytes) -> str:
    return ",".join(map(str, directions(numbers))) or NOT_KNOWN


def _collectives(measured: MeasuredTrace, strings: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the communication on a device or on the host, numbered by start time."""
    trace, chosen = measured.trace, collectives(measured.trace)
    joined = correlations(measured, chosen)
    for number, (place, times, connection) in enumerate(
        zip(chosen.tolist(), _times(measured, chosen), joined, strict=True)
    ):
        details = trace.tables["details"][trace.spans["details"][place]]
        name = strings[trace.name(place)]
        kind = strings[details.collective] if details.collective else name
        count = None if details.elements_in == NOT_RECORDED else as_int64(details.elements_in)
        yield (
            *(name, *times, connection, strings[reported_group(trace, place)], number, NONE, NONE),
            *(dtype_of(details).vendors, strings[NOT_KNOWN], count, kind),
            int(trace.spans["device"][place]),
        )


def _messages(measured: MeasuredTrace, strings: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the tasks of devices for communication; each operation has one task, its kernel."""
    trace, chosen = measured.trace, collectives(measured.trace)
    tasks = {place: number for number, place in enumerate(measured.launches.work.tolist())}
    for number, place in enumerate(chosen.tolist()):
        if place not in tasks:
            continue
        details = trace.tables["details"][trace.spans["details"][place]]
        source, target = ends_of(measured, place)
        yield (
            *(strings[trace.name(place)], tasks[place], strings["COMMUNICATION"], NONE),
            *(strings[reported_group(trace, place)], NONE, NO_TYPE),
            *(NONE if as_int64(end) is None else end for end in (source, target)),
            *(
                NO_TYPE,
                as_int64(size_of(details)),
                dtype_of(details).vendors,
                NO_TYPE,
                number,
                1,
                None,
            ),
        )


def ends_of(measured: MeasuredTrace, place: int) -> tuple[int | None, int | None]:
    """Return the sender and the receiver of a message; None if unknown."""
    trace = measured.trace
    details = trace.tables["details"][trace.spans["details"][place]]
    direction = int(measured.directions[place])
    source = details.sender if details.sender != NOT_RECORDED else None
    target = details.receiver if details.receiver != NOT_RECORDED else None
    if direction == SEND:
        return measured.rank, target
    if direction == RECEIVE:
        return source, measured.rank
    return None, None


def _copies(measured: MeasuredTrace) -> Iterator[tuple[Any, ...]]:
    trace, work = measured.trace, measured.launches.work
    chosen = np.flatnonzero(trace.category(COPIES)[work])
    kinds = [_COPIES.get(found[1], 65535) if (found := _COPY.search(name)) else 65535
             for name in trace.tables["name"]]  # fmt: skip
    sizes = [
        None if d.copied == NOT_RECORDED else as_int64(d.copied) for d in trace.tables["details"]
    ]
    codes = (trace.spans[name][work[chosen]].tolist() for name in ("details", "name"))
    for number, details, name in zip(chosen.tolist(), *codes, strict=True):
        known = trace.tables["details"][details].direction
        yield number, sizes[details], _COPIES[known] if known else kinds[name]


def _calls(
    measured: MeasuredTrace, strings: Table, threads: list[int]
) -> Iterator[tuple[Any, ...]]:
    trace, chosen = measured.trace, calls_of(measured)
    numbers = {name: number for number, name in LAYERS.items()}
    layers = [numbers[layer(category)] for category in trace.tables["category"]]
    names = trace.tables["name"]
    columns = (trace.spans[name][chosen].tolist() for name in ("category", "thread", "name"))
    rows = zip(_times(measured, chosen), correlations(measured, chosen), *columns, strict=True)
    for times, joined, category, thread, name in rows:
        yield (*times, layers[category], threads[thread], joined, strings[names[name]])


def _marks(
    measured: MeasuredTrace, strings: Table, threads: list[int]
) -> Iterator[tuple[Any, ...]]:
    """Yield the script's marks; the number of a domain is that of its name in the strings."""
    trace, found = measured.trace, measured.marks
    columns = (trace.spans[name][found.span].tolist() for name in ("thread", "name"))
    rows = zip(_times(measured, found.span), found.kind.tolist(), found.range_id, found.domain,
               *columns, strict=True)  # fmt: skip
    for times, kind, number, domain, thread, name in rows:
        range_id = NONE if as_int64(number) is None or number == NOT_RECORDED else number
        thread_id, text = threads[thread], strings[trace.tables["name"][name]]
        at = strings[domain] if domain else NONE
        yield (*times, kind, range_id, NONE, text, thread_id, thread_id, at, NONE)


def _devices(measured: MeasuredTrace) -> list[tuple[Any, ...]]:
    said = measured.trace.members.get("deviceProperties")
    devices = [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []
    found = [(one.get("id"), one.get("name")) for one in devices]
    return [(n, name) for n, name in found if as_int64(n) is not None and isinstance(name, str)]


def _session(measured: MeasuredTrace) -> list[tuple[Any, ...]]:
    """Return the start of the first event of the trace, and the end of the last one."""
    spans = measured.trace.spans
    if not len(spans["start"]):
        return []
    begin, end = int(spans["start"].min()), int((spans["start"] + spans["length"]).max())
    return [(measured.base_ns + begin, measured.base_ns + end)]


def as_int64(number: object) -> int | None:
    """Return an integer that fits into a column of the database; None for anything else."""
    if isinstance(number, int) and abs(number) < 1 << 63:
        return number
    return None


def _integers(*names: str) -> Columns:
    return tuple((name, INTEGER) for name in names)


DEVICE_TABLES: dict[str, Columns] = {
    "TASK": _integers(
        "startNs", "endNs", "deviceId", "connectionId", "globalTaskId", "globalPid", "taskType",
        "contextId", "streamId", "taskId", "modelId",
    ),
    "COMPUTE_TASK_INFO": _integers(
        "name", "globalTaskId", "blockNum", "mixBlockNum", "taskType", "opType", "inputFormats",
        "inputDataTypes", "inputShapes", "outputFormats", "outputDataTypes", "outputShapes",
        "attrInfo", "opState", "hf32Eligible", "gridDim", "blockDim",
    ),
    "COMMUNICATION_OP": (
        *_integers("opName", "startNs", "endNs", "connectionId", "groupName", "opId", "relay",
                   "retry", "dataType", "algType"),
        ("count", NUMERIC), *_integers("opType", "deviceId"),
    ),
    "COMMUNICATION_TASK_INFO": (
        *_integers("name", "globalTaskId", "taskType", "planeId", "groupName", "notifyId",
                   "rdmaType", "srcRank", "dstRank", "transportType", "size", "dataType",
                   "linkType", "opId", "isMaster"),
        ("bandwidth", NUMERIC),
    ),
    "MEMCPY_INFO": (("globalTaskId", NUMERIC), ("size", NUMERIC), ("memcpyOperation", NUMERIC)),
    "CANN_API": _integers("startNs", "endNs", "type", "globalTid", "connectionId", "name"),
    "MSTX_EVENTS": _integers(
        "startNs", "endNs", "eventType", "rangeId", "category", "message", "globalTid",
        "endGlobalTid", "domainId", "connectionId",
    ),
    "NPU_INFO": (("id", INTEGER), ("name", TEXT)),
    "SESSION_TIME_INFO": _integers("startTimeNs", "endTimeNs"),
    "ENUM_MSTX_EVENT_TYPE": _ENUM, "ENUM_MEMCPY_OPERATION": _ENUM, "ENUM_HCCL_DATA_TYPE": _ENUM,
    "ENUM_HCCL_LINK_TYPE": _ENUM, "ENUM_HCCL_TRANSPORT_TYPE": _ENUM, "ENUM_HCCL_RDMA_TYPE": _ENUM,
}  # fmt: skip

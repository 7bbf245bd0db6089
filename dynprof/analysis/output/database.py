"""The vendor's SQLite database, with the vendor's tables, columns and types."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by
from dynprof.analysis.output.device_rows import (
    DEVICE_TABLES,
    INTEGER,
    LAYERS,
    NONE,
    TEXT,
    correlations,
    device_rows,
)
from dynprof.analysis.output.tables import COMPONENT, shapes_text
from dynprof.analysis.reading.columns import Table
from dynprof.analysis.reading.events import CALLS, COLLECTIONS, FRAMES, LABELS, OPERATORS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.output.device_rows import Columns

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

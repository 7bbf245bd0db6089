"""Operators and kernels by name, as plain data."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

MOST_OPERATORS = 2000


def operators_data(measured: MeasuredTrace) -> dict[str, Any]:
    """Return counts and times by operator and by kernel, in ms."""
    devices = any(kind.core != "HOST" for kind in measured.kinds)
    back = Counter[str]()
    for one in measured.passes:
        back[one.operator] += one.device
    rows: list[list[Any]] = [
        [row.name, "host", row.count, *_ms(row.own, row.total, row.device_own, back.get(row.name))]
        for row in measured.work
    ]
    rows += [
        [kind.name, kind.core.lower(), kind.count, *_ms(kind.total, kind.total, None, None)]
        for kind in measured.kinds
        if kind.core != "HOST"
    ]
    rows.sort(key=lambda row: -row[3])
    return {"rows": rows[:MOST_OPERATORS], "count": len(rows), "devices": devices}


def _ms(*times: int | None) -> list[float | None]:
    return [None if time is None else time / 1e6 for time in times]

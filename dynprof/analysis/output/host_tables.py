"""The vendor's csv tables of the host's work other than operators: device calls, and marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.marks import CROSSING, KINDS
from dynprof.analysis.measures.timeline.steps import HOST_NAME
from dynprof.analysis.output.levels import includes
from dynprof.analysis.output.tables import us
from dynprof.analysis.reading.events import LAUNCHES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.output.tables import Row, Tables

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


def host_tables(measured: MeasuredTrace) -> Tables:
    """Return the tables of calls and marks."""
    return {
        "api_statistic.csv": (API_STATISTIC, _api_statistic(measured)),
        "msprof_tx.csv": (MSPROF_TX, _marks(measured)),
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


def _marks(measured: MeasuredTrace) -> Iterator[Row]:
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

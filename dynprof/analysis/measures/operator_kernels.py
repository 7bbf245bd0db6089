"""The kernels that each operator launched, by the operator's input shapes; their CUPTI counters.

CUPTI runs each kernel several times to count. Its events have no correlation id and made-up times,
but they are in the order of the launches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.kernels import CATEGORIES
from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost
from dynprof.analysis.measures.timeline.operators import is_step, shown_name
from dynprof.analysis.reading.events import LAUNCHES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

_LAUNCH = re.compile(r"(?:cu|cuda|hip)(?:Module)?Launch(?:Cooperative)?Kernel")


@dataclass(frozen=True)
class OperatorKernel:
    """All device activities of one name that operators of one name and shapes launched.

    Times are in ns.

    Attributes:
        operator: The innermost operator or label around the launch; empty if unknown.
        dims: The shapes of its inputs, as Kineto writes them; empty if the trace does not tell.
        types: Their types, likewise.
        kernel: The name of the kernel, copy or memset.
        category: Its category.
        count: How many ran.
        total: The sum of their durations.
        shortest: The shortest.
        longest: The longest.
        deviation: The standard deviation of their durations, of all of them and not of a sample.
        stack: The number of the call stack that launched most of the time; 0 for none.
    """

    operator: str
    dims: bytes
    types: bytes
    kernel: str
    category: str
    count: int
    total: int
    shortest: int
    longest: int
    deviation: float
    stack: int


def operator_kernels(
    trace: Trace,
    found: Operators,
    started: Launches,
    launcher: Numbers,
    category: Numbers,
    stack: Numbers,
) -> list[OperatorKernel]:
    """Return a row for each operator, shapes and kernel, the most time first.

    Args:
        trace: The trace.
        found: Its operators.
        started: Device activities and their launches.
        launcher: For each activity the index of its operator; -1 if unknown.
        category: For each activity its category.
        stack: For each operator the number of its call stack.
    """
    names, work = trace.tables["name"], started.work
    if not len(work):
        return []
    steps = {code: shown_name(name) for code, name in enumerate(names) if is_step(name)}
    operator = np.append(trace.spans["name"][found.span], UNKNOWN)[launcher]
    for shown in set(steps.values()):
        same = [code for code, name in steps.items() if name == shown]
        operator[np.isin(operator, same)] = same[0]
    dims = np.append(trace.spans["dims"][found.span], UNKNOWN)[launcher]
    kernel, time = trace.spans["name"][work], trace.spans["length"][work]
    called = np.append(stack, 0)[launcher]
    row = np.zeros(len(work), np.int64)
    for column in (operator, dims, kernel, category):  # one by one, so that no key is too large
        row = np.unique(row * (int(column.max()) + 2) + column + 1, return_inverse=True)[1]
    order = np.lexsort((time, row))
    first = np.flatnonzero(np.append(True, np.diff(row[order]) > 0))
    count = np.diff(np.append(first, len(order)))
    total = np.add.reduceat(time[order], first)
    away = time[order] - np.repeat(total / count, count)
    deviation = np.sqrt(np.add.reduceat(away * away, first) / count)
    columns = (count, total, time[order[first]], time[order[first + count - 1]], deviation)
    stacks = _of_most_time(row, called, time)
    numbers = zip(*(column.tolist() for column in columns), stacks.tolist(), strict=True)
    rows = []
    for place, amounts in zip(order[first].tolist(), numbers, strict=True):
        by, shapes, types = "", b"", b""
        if launcher[place] != UNKNOWN:
            by, (shapes, types, *_) = names[operator[place]], trace.tables["dims"][dims[place]]
        made = (shown_name(by), shapes, types, names[kernel[place]], CATEGORIES[category[place]])
        rows.append(OperatorKernel(*made, *amounts))
    return sorted(rows, key=lambda one: (-one.total, one.operator, one.kernel, one.dims))


def _of_most_time(row: Numbers, called: Numbers, time: Numbers) -> Numbers:
    """Return for each row the number of the stack with the most time in it."""
    width = int(called.max()) + 1
    both, place = np.unique(row * width + called, return_inverse=True)
    spent = np.bincount(place, time, len(both))
    order = np.lexsort((spent, both // width))
    last = np.append(np.diff((both // width)[order]) > 0, True)
    found: Numbers = both[order[last]] % width
    return found


@dataclass(frozen=True)
class OperatorCounters:
    """The counters of all kernels of one name that operators of one name and shapes launched.

    Attributes:
        operator: The innermost operator or label around the launch; empty if unknown.
        dims: The shapes of its inputs, as Kineto writes them; empty if the trace does not tell.
        kernel: The name of the kernel, as CUPTI has it.
        count: How many ran.
        values: The sums of the counters that end in ``.sum``, and the means of all others.
    """

    operator: str
    dims: bytes
    kernel: str
    count: int
    values: dict[str, float]


def operator_counters(trace: Trace, found: Operators) -> list[OperatorCounters]:
    """Return a row for each operator, shapes and kernel, in the order of the first launch.

    Operators are unknown if there are not as many launches as kernels.

    Args:
        trace: The trace.
        found: Its operators.
    """
    calls = np.flatnonzero(
        trace.category(LAUNCHES) & trace.named(lambda name: bool(_LAUNCH.match(name)))
    )
    by = np.full(len(trace.counters), UNKNOWN, np.int64)
    if len(calls) == len(trace.counters):
        by = innermost(trace, found.span, found.parent, calls)
    rows = defaultdict[tuple[str, bytes, str], list[dict[str, float]]](list)
    for one, operator in zip(trace.counters, by.tolist(), strict=True):
        name, dims = "", b""
        if operator != UNKNOWN:
            span = int(found.span[operator])
            name, dims = trace.name(span), trace.tables["dims"][trace.spans["dims"][span]][0]
        rows[name, dims, one.kernel].append(one.values)
    return [OperatorCounters(*key, len(values), _together(values)) for key, values in rows.items()]


def _together(values: list[dict[str, float]]) -> dict[str, float]:
    """Return the sums of counters that add up, and the means of the others."""
    found = {}
    for name in dict.fromkeys(name for one in values for name in one):
        known = [one[name] for one in values if name in one]
        found[name] = sum(known) if name.endswith(".sum") else sum(known) / len(known)
    return found

"""CUPTI's counters by the operator that launched each kernel.

CUPTI runs each kernel several times to count. Its events have no correlation id and made-up times,
but they are in the order of the launches.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN, innermost
from dynprof.analysis.reading.events import LAUNCHES

if TYPE_CHECKING:
    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

_LAUNCH = re.compile(r"(?:cu|cuda|hip)(?:Module)?Launch(?:Cooperative)?Kernel")


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

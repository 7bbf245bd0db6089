"""Kernels of devices, and their totals by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import CALLS, COPIES, MEMSETS, ON_DEVICE, OPERATORS
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.operators import Operators
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Kind:
    """All kernels of one name, or all operators if no device worked; times in ns.

    Attributes:
        name: The name.
        core: What ran them: ``KERNEL``, ``COMMUNICATION``, ``MEMCPY``, ``MEMSET`` or ``HOST``.
        count: How many ran.
        total: The sum of their durations; on the host without nested operators.
        shortest: The shortest.
        longest: The longest.
        ratio: Share of the total over all names, in percent.
    """

    name: str
    core: str
    count: int
    total: int
    shortest: int
    longest: int
    ratio: float


LONGEST_NAME = 60  # Characters of a name in a headline, about a line.
_TORCH = "at::native::"
"""Namespace of torch's kernels: only their templates distinguish them, by what they compute."""
_PAIRS = {")": "(", ">": "<"}


def cores(trace: Trace, chosen: Numbers) -> list[str]:
    """Return the kind of unit that ran each of the chosen spans, as in :attr:`Kind.core`."""
    of_category = np.array([_core(category) for category in trace.tables["category"]], object)
    found = of_category[trace.spans["category"][chosen]]
    found[trace.communication[chosen]] = "COMMUNICATION"
    return list(found)


def _core(category: str) -> str:
    lower = category.lower()
    if lower in OPERATORS | CALLS:
        return "HOST"
    if lower in COPIES:
        return "MEMCPY"
    if lower in MEMSETS:
        return "MEMSET"
    return "KERNEL"


def waits(trace: Trace, chosen: Numbers) -> Numbers:
    """Return how long the stream of each kernel had been idle before it, in ns.

    Args:
        trace: The trace.
        chosen: Indices of kernels among its spans, in order of start.
    """
    spans = trace.spans
    key = spans["device"][chosen] * 1_000_003 + spans["stream"][chosen]
    start, end = spans["start"][chosen], spans["start"][chosen] + spans["length"][chosen]
    result = np.zeros(len(chosen), np.int64)
    for stream in distinct(key):
        selected = np.flatnonzero(key == stream)
        before = np.maximum.accumulate(end[selected])[:-1]
        result[selected[1:]] = np.maximum(start[selected][1:] - before, 0)
    return result


def kinds(trace: Trace, found: Operators, counted: NDArray[np.bool_] | None = None) -> list[Kind]:
    """Return a row for each name, the one with the most time first.

    Args:
        trace: The trace.
        found: Its operators.
        counted: Mask of the spans that count; all by default.
    """
    wanted = np.ones(len(trace.spans["start"]), bool) if counted is None else counted
    on_device = trace.category(ON_DEVICE)
    chosen = np.flatnonzero(on_device & wanted)
    times = trace.spans["length"][chosen]
    if not on_device.any():
        on_host = (trace.category(OPERATORS, CALLS) & wanted)[found.span]
        chosen, times = found.span[on_host], found.own[on_host]
    name, category = trace.spans["name"][chosen], trace.spans["category"][chosen]
    sent = trace.communication[chosen]
    key = (name * len(trace.tables["category"]) + category) * 2 + sent
    keys, first, places = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(keys)))
    sums, shortest, longest = (
        reduce.reduceat(times[order], starts).tolist() if len(keys) else []
        for reduce in (np.add, np.minimum, np.maximum)
    )
    everything = max(int(times.sum()), 1)
    counts = np.bincount(places, minlength=len(keys)).tolist()
    core = cores(trace, chosen[first])
    rows = []
    for number, place in enumerate(first.tolist()):
        label = trace.tables["name"][name[place]]
        rows.append(
            Kind(
                name=label,
                core=core[number],
                count=counts[number],
                total=sums[number],
                shortest=shortest[number],
                longest=longest[number],
                ratio=100 * sums[number] / everything,
            )
        )
    return sorted(rows, key=lambda row: (-row.total, row.name))


def short_name(name: str) -> str:
    """Return the name of a kernel for a headline, cut to 60 characters."""
    found = without_templates(name.removeprefix("void ").replace("(anonymous namespace)::", ""))
    found = found.removeprefix(_TORCH)
    return found if len(found) <= LONGEST_NAME else f"{found[: LONGEST_NAME - 1]}…"


def without_templates(name: str) -> str:
    """Return a kernel's name without ``void``, its parameters and its templates.

    ``void f<float, 2ul>(float*, int)`` becomes ``f``. Copies, whose brackets follow a space, and
    templates of torch's own kernels are kept.
    """
    without = name.removeprefix("void ")
    short = _without_end(without, ")")
    if short.endswith(" "):
        return without
    return short if short.startswith(_TORCH) else _without_end(short, ">")


def _without_end(name: str, closing: str) -> str:
    """Return a name without the brackets at its end; unchanged if they are not balanced."""
    if not name.endswith(closing):
        return name
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += (name[place] == closing) - (name[place] == _PAIRS[closing])
        if not depth:
            return name[:place]
    return name

"""Operators of the host: their nesting and their times, counted as torch does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.iteration_labels import read_label
from dynprof.analysis.measures.timeline.launches import UNKNOWN, launched_by
from dynprof.analysis.reading.events import CALLS, FRAMES, LABELS, OPERATORS, RANGES, STEP_LABELS
from dynprof.analysis.reading.spans import ROOT, callers, parents, self_time

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

STEP, STEPS = "ProfilerStep#", "ProfilerStep*"
"""Prefix of a step's label, and the name under which torch shows all steps together."""
ITERATIONS = "iteration*"
"""The name under which all labels of iterations are shown together."""
_UTILITIES = {
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
}
"""Operators that torch's tables leave out; their time counts for the operator around them."""


@dataclass(frozen=True)
class Operators:
    """The operators of a trace, in order of start; times in ns.

    Attributes:
        span: Indices into the trace's spans.
        parent: Index here of the operator around each; -1 for none.
        total_ns: Durations.
        self_ns: Durations without those of nested operators. Negative if operators nested in one
            cross.
        device_total_ns: Device time that an operator and those nested in it launched.
        device_self_ns: Device time that it launched itself.
        device_unknown: Device time of unknown origin. Together with ``device_self_ns`` it is the
            whole device time.
    """

    span: Numbers
    parent: Numbers
    total_ns: Numbers
    self_ns: Numbers
    device_total_ns: Numbers
    device_self_ns: Numbers
    device_unknown: int


@dataclass(frozen=True)
class Calls:
    """Operators and Python frames of a trace, in order of start.

    Attributes:
        span: Indices into the trace's spans.
        parent: Index here of the operator or frame around each; -1 for none.
    """

    span: Numbers
    parent: Numbers


@dataclass(frozen=True)
class Average:
    """All operators of one name; times in ns.

    Attributes:
        name: The name; all steps are ``ProfilerStep*``, and iterations ``iteration*``.
        count: How many ran.
        total_ns: The sum of their durations.
        self_ns: The same without nested operators.
        device_total_ns: Device time that they and those nested in them launched.
        device_self_ns: Device time that they launched themselves.
    """

    name: str
    count: int
    total_ns: int
    self_ns: int
    device_total_ns: int
    device_self_ns: int


def is_step(name: str) -> bool:
    """Return whether a name is the label of a step, or of an iteration of an inference server."""
    return name.startswith(STEP) or read_label(name) is not None


def step_marks(trace: Trace) -> NDArray[np.bool_]:
    """Return which spans are labels of steps."""
    return trace.category(STEP_LABELS, RANGES) & trace.named(is_step)


def operators(trace: Trace, started: Launches) -> Operators:
    """Return the operators of a trace, without those that only repeat their parent.

    Args:
        trace: The trace.
        started: Device activities and their launches.
    """
    wanted = trace.category(OPERATORS, LABELS, CALLS) & ~trace.named(_UTILITIES.__contains__)
    span = np.flatnonzero(wanted)
    parent = parents(*(trace.spans[name][span] for name in ("start", "length", "thread")))
    while (repeated := _repeats(trace.spans["name"][span], parent)).any():
        span, parent = span[~repeated], _without(parent, repeated)
    length = trace.spans["length"][span]
    device_self_ns, unknown = device_time(trace, started, span, parent)
    return Operators(
        span=span,
        parent=parent,
        total_ns=length,
        self_ns=self_time(length, parent),
        device_total_ns=_with_children(device_self_ns, parent),
        device_self_ns=device_self_ns,
        device_unknown=unknown,
    )


def calls(trace: Trace) -> Calls:
    """Return the operators and frames of a trace, without labels, which may cross frames."""
    span = np.flatnonzero(trace.category(OPERATORS, CALLS, FRAMES))
    columns = (trace.spans[name][span] for name in ("start", "length", "thread"))
    return Calls(span, callers(*columns))


def _repeats(name: Numbers, parent: Numbers) -> NDArray[np.bool_]:
    """Return which are the only child of a parent with the same name."""
    inside = parent != ROOT
    children = np.bincount(parent[inside], minlength=len(parent))
    result = np.zeros(len(parent), bool)
    result[inside] = (name[parent[inside]] == name[inside]) & (children[parent[inside]] == 1)
    return result


def _without(parent: Numbers, repeated: NDArray[np.bool_]) -> Numbers:
    """Return the parents of the rest. Children of a removed operator get its parent."""
    parent = parent.copy()
    while (inside := (parent != ROOT) & repeated[parent]).any():
        parent[inside] = parent[parent[inside]]
    places = np.append(np.cumsum(~repeated) - 1, ROOT)
    return places[parent[~repeated]]


def device_time(
    trace: Trace, started: Launches, span: Numbers, parent: Numbers
) -> tuple[Numbers, int]:
    """Return the device time that each span launched itself, and that of unknown origin, in ns.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        span: Indices of the spans, in order of start.
        parent: Index into ``span`` of the parent of each.
    """
    by, times = launched_by(trace, started, span, parent), trace.spans["length"][started.work]
    known = by != UNKNOWN
    spent = np.bincount(by[known], weights=times[known], minlength=len(span))
    return spent.astype(np.int64), int(times[~known].sum())


def _with_children(self_ns: Numbers, parent: Numbers) -> Numbers:
    """Return the sum over each one and all nested in it. Children come after their parents."""
    total = self_ns.tolist()
    for place, outer in zip(range(len(total) - 1, -1, -1), parent[::-1].tolist(), strict=True):
        if outer != ROOT:
            total[outer] += total[place]
    return np.array(total, np.int64)


def averages(
    trace: Trace, found: Operators, counted: NDArray[np.bool_] | None = None
) -> list[Average]:
    """Return a row for each name, the one with the most self time first.

    Args:
        trace: The trace.
        found: Its operators.
        counted: Mask of the spans that count; all by default.
    """
    shown = [shown_name(name) for name in trace.tables["name"]]
    table = {name: number for number, name in enumerate(dict.fromkeys(shown))}
    code = np.array([table[name] for name in shown] or [0], np.int64)[trace.spans["name"]]
    selected = slice(None) if counted is None else counted[found.span]
    code = code[found.span][selected]
    columns = (found.total_ns, found.self_ns, found.device_total_ns, found.device_self_ns)
    sums = [np.bincount(code, weights=column[selected], minlength=len(table)) for column in columns]
    counts = np.bincount(code, minlength=len(table))
    rows = [
        Average(name, int(counts[number]), *(int(total[number]) for total in sums))
        for name, number in table.items()
        if counts[number]
    ]
    return sorted(rows, key=lambda row: (-row.self_ns, row.name))


def shown_name(name: str) -> str:
    """Return the name of an operator in tables, which is the same for all steps."""
    if not is_step(name):
        return name
    return STEPS if name.startswith(STEP) else ITERATIONS

"""The operators and the line of the user's code that launched sequences of kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.launches import UNKNOWN, Launches, launched_by
from dynprof.analysis.measures.timeline.operators import is_step
from dynprof.analysis.measures.user_code import code_at, open_at_start, place_of
from dynprof.analysis.reading.events import LAUNCHES
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from dynprof.analysis.measures.measured_trace import MeasuredTrace
    from dynprof.analysis.measures.sequences import KernelSequence
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]


OUTSIDE = "(outside of operators)"
"""In place of an operator, if none is around a launch."""


@dataclass(frozen=True)
class Source:
    """The most frequent source of a sequence.

    Attributes:
        operators: The operator that launched each of its kernels; :data:`OUTSIDE` if no operator is
            around the launch. For a graph it is the call, and empty if it is unknown.
        line: The place in the user's own code; empty if it is unknown.
    """

    operators: tuple[str, ...]
    line: str


def sources(measured: MeasuredTrace, chosen: list[KernelSequence]) -> list[Source]:
    """Return the source of each sequence."""
    if not chosen:
        return []
    trace, found = measured.trace, measured.operators
    kernels = np.concatenate([one.kernels.ravel() for one in chosen])
    call = measured.launches.call[np.searchsorted(measured.launches.work, kernels)]
    by = launched_by(trace, Launches(kernels, call), found.span, found.parent)
    operator = np.append(found.span, UNKNOWN)[by]
    step = np.append(trace.named(is_step), [False])
    operator = np.where(step[operator] | (operator == UNKNOWN), call, operator)
    thread = np.where(call == UNKNOWN, UNKNOWN, trace.spans["thread"][call])
    frame = code_at(trace, measured.calls, thread, trace.spans["start"][call]).frame
    calls = {name for name in launch_calls(trace) if "Graph" not in name}
    result, place = [], 0
    for one in chosen:
        here = slice(place, place := place + one.kernels.size)
        rows = operator[here].reshape(one.kernels.shape)
        named = (_most(trace, column) for column in rows.T)
        operators = tuple(OUTSIDE if name in calls else name for name in named)
        result.append(Source(operators, _line(measured, frame[here])))
    return result


def launch_calls(trace: Trace) -> set[str]:
    """Return the names of calls that launch work: no operator is known around some of them."""
    codes = distinct(trace.spans["name"][trace.category(LAUNCHES)])
    return {trace.tables["name"][code] for code in codes.tolist()}


def _line(measured: MeasuredTrace, frames: Numbers) -> str:
    """Return the place of the most frequent frame; empty if most are unknown."""
    if not (most := _most(measured.trace, frames)):
        return ""
    early = open_at_start(measured.trace, measured.marked)[frames[frames != UNKNOWN]]
    return place_of(most, open_at_start=bool(early.any()))


def _most(trace: Trace, spans: Numbers) -> str:
    """Return the most frequent name of spans; empty if most are unknown."""
    names = Counter(np.where(spans == UNKNOWN, UNKNOWN, trace.spans["name"][spans]).tolist())
    most = max(names, key=lambda name: (names[name], name))
    return "" if most == UNKNOWN else str(trace.tables["name"][most])


def joined_names(names: Iterable[str], most: int | None = None) -> str:
    """Return names in order, such as ``2 x a; b``. An empty name is shown as ``unknown``.

    Args:
        names: The names.
        most: Maximum number of runs to name; ``...`` replaces the rest.
    """
    runs = [(name or "unknown", len(list(same))) for name, same in groupby(names)]
    shown = [name if count == 1 else f"{count} x {name}" for name, count in runs[:most]]
    return "; ".join([*shown, "..."] if len(shown) < len(runs) else shown)

"""Which call of the host started each thing that a device did, and who made that call.

A launch and what it starts bear the same correlation; who made it is what was open on its thread
at that time. The ``External id`` that Kineto writes is believed only where no call was recorded:
for some devices and versions it repeats the correlation, which is the number of no operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.nesting import ROOT
from dynprof.analysis.reading.categories import LAUNCHES, ON_DEVICE
from dynprof.analysis.reading.intervals import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

UNKNOWN = -1
"""Stands where a trace does not say who started something."""


@dataclass(frozen=True)
class Launches:
    """What devices did, in the order of its begin, and what started it.

    Attributes:
        work: Places of what devices did among the trace's spans.
        call: Places of the host's calls that started it; -1 where none was recorded.
    """

    work: Numbers
    call: Numbers


def launches(trace: Trace) -> Launches:
    """Return what started each thing that a device did; all of a graph, its one launch."""
    spans = trace.spans
    work = np.flatnonzero(trace.category(ON_DEVICE))
    calls = np.flatnonzero(trace.category(LAUNCHES) & (spans["correlation"] >= 0))
    calls = calls[_of_one_process(trace, calls, spans["correlation"][calls])]
    return Launches(work, _found(spans["correlation"][work], spans["correlation"][calls], calls))


def launched_by(trace: Trace, found: Launches, chosen: Numbers, parent: Numbers) -> Numbers:
    """Return who started each thing that a device did: places among some spans, -1 if unknown.

    Args:
        trace: The trace.
        found: What devices did.
        chosen: Places among its spans of who may have: operators, or frames as well.
        parent: Places among the chosen of what each of these lies in.
    """
    spans = trace.spans
    called = found.call != UNKNOWN
    result = np.full(len(found.work), UNKNOWN, np.int64)
    result[called] = innermost(trace, chosen, parent, found.call[called])
    orphans = found.work[~called]
    named = spans["external_id"][orphans]
    named = np.where(named == spans["correlation"][orphans], UNKNOWN, named)
    ids = spans["external_id"][chosen]
    known = np.flatnonzero(ids > 0)
    known = known[_of_one_process(trace, chosen[known], ids[known])]
    by_id = _found(named, ids[known], known)
    late = by_id != UNKNOWN
    late[late] = spans["start"][chosen[by_id[late]]] > spans["start"][orphans[late]]
    result[~called] = np.where(late, UNKNOWN, by_id)
    return result


def innermost(trace: Trace, chosen: Numbers, parent: Numbers, moments: Numbers) -> Numbers:
    """Return which of some spans was the innermost open one when others began, on their thread.

    Args:
        trace: The trace.
        chosen: Places of the first, in the order of their begin.
        parent: Places among the chosen of what each lies in.
        moments: Places of the others.

    Returns:
        Places among the chosen; -1 where none was open.
    """
    spans = trace.spans
    return open_at(trace, chosen, parent, spans["thread"][moments], spans["start"][moments])


def open_at(
    trace: Trace, chosen: Numbers, parent: Numbers, thread: Numbers, when: Numbers
) -> Numbers:
    """Return which of some spans was the innermost open one at some times on some threads.

    Args:
        trace: The trace.
        chosen: Places of the spans, in the order of their begin.
        parent: Places among the chosen of what each lies in.
        thread: Numbers of the threads.
        when: The times.

    Returns:
        Places among the chosen; -1 where none was open.
    """
    spans = trace.spans
    end = (spans["start"] + spans["length"])[chosen]
    result = np.full(len(when), ROOT, np.int64)
    if not len(chosen):
        return result
    for number in distinct(thread).tolist():
        mine, there = np.flatnonzero(spans["thread"][chosen] == number), thread == number
        last = np.searchsorted(spans["start"][chosen[mine]], when[there], side="right") - 1
        result[there] = np.append(mine, ROOT)[last]
    while (over := (result != ROOT) & (end[result] <= when)).any():
        result[over] = parent[result[over]]
    return result


def _of_one_process(trace: Trace, chosen: Numbers, numbers: Numbers) -> NDArray[np.bool_]:
    """Return which spans have a number that no span of another process has.

    Each process counts for itself, and what a device did does not say which one asked for it.
    """
    pids = [pid for pid, _ in trace.tables["thread"]]
    code = {pid: place for place, pid in enumerate(dict.fromkeys(pids))}
    process = np.array([code[pid] for pid in pids], np.int64)[trace.spans["thread"][chosen]]
    if not len(chosen) or (process == process[0]).all():
        return np.ones(len(chosen), bool)
    pairs = np.unique(np.stack([numbers, process]), axis=1)
    number, times = np.unique(pairs[0], return_counts=True)
    return ~np.isin(numbers, number[times > 1])


def _found(wanted: Numbers, keys: Numbers, values: Numbers) -> Numbers:
    """Return the first value with each key; -1 for keys that there are not, and below 0."""
    ids, first = np.unique(keys, return_index=True)
    places = np.searchsorted(ids, wanted)
    known = (places < len(ids)) & (wanted >= 0)
    known[known] = ids[places[known]] == wanted[known]
    result = np.full(len(wanted), UNKNOWN, np.int64)
    result[known] = values[first[places[known]]]
    return result

"""The host call that launched each device activity, and the operator that made that call.

A launch and its activities have the same correlation id. Its operator is the innermost one open on
its thread at that time. Kineto's ``External id`` is used only if no call was recorded, or the call
is inside no operator: for some devices and versions the id repeats the correlation id, which
identifies no operator.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import LAUNCHES, ON_DEVICE
from dynprof.analysis.reading.spans import ROOT, distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

UNKNOWN = -1
"""In place of an index, if the trace does not tell it."""
_LAUNCHING = re.compile("Launch|Memcpy|Memset")
"""Matches names of calls of a device's runtime that launch activities."""
STREAM_KEY_FACTOR = 1_000_003
"""A device's number times this, plus a stream's number, is one key for both."""


@dataclass(frozen=True)
class Launches:
    """Device activities in order of start, and the calls that launched them.

    Attributes:
        work: Indices of the device activities among the trace's spans.
        call: Indices of the host calls that launched them; -1 if none was recorded.
    """

    work: Numbers
    call: Numbers


def launches(trace: Trace) -> Launches:
    """Return the launch of each device activity. All activities of a graph share one launch."""
    spans = trace.spans
    work = np.flatnonzero(trace.category(ON_DEVICE))
    calls = np.flatnonzero(trace.category(LAUNCHES) & (spans["correlation"] >= 0))
    calls = calls[_of_one_process(trace, calls, spans["correlation"][calls])]
    return Launches(work, _found(spans["correlation"][work], spans["correlation"][calls], calls))


def without_work(trace: Trace) -> NDArray[np.bool_]:
    """Return the calls that launch work of a device of which none is in the trace."""
    calls = trace.category(LAUNCHES) & trace.named(lambda name: bool(_LAUNCHING.search(name)))
    number = trace.spans["correlation"]
    found: NDArray[np.bool_] = calls & ~np.isin(number, number[trace.category(ON_DEVICE)])
    return found


def launched_by(trace: Trace, found: Launches, chosen: Numbers, parent: Numbers) -> Numbers:
    """Return the operator that launched each device activity, as an index into ``chosen``.

    Args:
        trace: The trace.
        found: Device activities and their launches.
        chosen: Indices of the candidate spans: operators, or frames as well.
        parent: Index into ``chosen`` of the parent of each.

    Returns:
        Indices into ``chosen``; -1 if unknown.
    """
    spans = trace.spans
    called = found.call != UNKNOWN
    result = np.full(len(found.work), UNKNOWN, np.int64)
    result[called] = innermost(trace, chosen, parent, found.call[called])
    unknown = result == UNKNOWN
    orphans = found.work[unknown]
    named = spans["external_id"][orphans]
    named = np.where(named == spans["correlation"][orphans], UNKNOWN, named)
    ids = spans["external_id"][chosen]
    known = np.flatnonzero(ids > 0)
    known = known[_of_one_process(trace, chosen[known], ids[known])]
    by_id = _found(named, ids[known], known)
    late = by_id != UNKNOWN
    late[late] = spans["start"][chosen[by_id[late]]] > spans["start"][orphans[late]]
    result[unknown] = np.where(late, UNKNOWN, by_id)
    return result


def innermost(trace: Trace, chosen: Numbers, parent: Numbers, moments: Numbers) -> Numbers:
    """Return the innermost of the chosen spans that was open when other spans began.

    Only spans of the same thread count.

    Args:
        trace: The trace.
        chosen: Indices of the chosen spans, in order of start.
        parent: Index into ``chosen`` of the parent of each.
        moments: Indices of the other spans.

    Returns:
        Indices into ``chosen``; -1 if none was open.
    """
    spans = trace.spans
    return open_at(trace, chosen, parent, spans["thread"][moments], spans["start"][moments])


def open_at(
    trace: Trace, chosen: Numbers, parent: Numbers, thread: Numbers, when: Numbers
) -> Numbers:
    """Return the innermost of the chosen spans that was open at each time on each thread.

    Args:
        trace: The trace.
        chosen: Indices of the chosen spans, in order of start.
        parent: Index into ``chosen`` of the parent of each.
        thread: Thread numbers.
        when: The times.

    Returns:
        Indices into ``chosen``; -1 if none was open.
    """
    spans = trace.spans
    end = (spans["start"] + spans["length"])[chosen]
    result = np.full(len(when), ROOT, np.int64)
    if not len(chosen):
        return result
    for number in distinct(thread).tolist():
        selected, there = np.flatnonzero(spans["thread"][chosen] == number), thread == number
        last = np.searchsorted(spans["start"][chosen[selected]], when[there], side="right") - 1
        result[there] = np.append(selected, ROOT)[last]
    while (over := (result != ROOT) & (end[result] <= when)).any():
        result[over] = parent[result[over]]
    return result


def _of_one_process(trace: Trace, chosen: Numbers, numbers: Numbers) -> NDArray[np.bool_]:
    """Return which spans have a number that no span of another process has.

    Each process numbers its launches separately, and a device activity does not name its process.
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
    """Return the first value for each wanted key; -1 for missing and negative keys."""
    ids, first = np.unique(keys, return_index=True)
    places = np.searchsorted(ids, wanted)
    known = (places < len(ids)) & (wanted >= 0)
    known[known] = ids[places[known]] == wanted[known]
    result = np.full(len(wanted), UNKNOWN, np.int64)
    result[known] = values[first[places[known]]]
    return result

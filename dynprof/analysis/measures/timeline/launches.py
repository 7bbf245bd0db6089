"""The host call that launched each device activity, and the operator that made that call.

A launch and its activities have the same correlation id. Its operator is the innermost one open on
its thread at that time. Kineto's ``External id`` is used only if no call was recorded, or the call
is inside no operator: for some devices and versions the id repeats the correlation id, which
identifies no operator.

A device may run work that was launched before the recording began. Kineto drops what began before
the window, and some devices record nothing that was launched before it. A device is not idle then,
although the trace shows nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.events import LAUNCHES, NONE, ON_DEVICE
from dynprof.analysis.reading.spans import ROOT, distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.reading.spans import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]

UNKNOWN = -1
"""In place of an index, if the trace does not tell it."""
_LAUNCHING = re.compile("Launch|Memcpy|Memset")
"""Matches names of calls of a device's runtime that launch activities."""
STREAM_KEY_FACTOR = 1_000_003
"""A device's number times this, plus a stream's number, is one key for both."""
MIN_HELD_NS = 100_000
"""Shortest delay of the first work on an idle device, in ns, that shows that other work was first.

A launch on an idle device takes some 10 us.
"""
_LATEST = np.iinfo(np.int64).max
"""In place of the first time of a trace without events, in ns."""


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


def in_flight(trace: Trace, found: Launches) -> NDArray[np.bool_]:
    """Return which device activities were launched before the recording began.

    The trace has no launch of them, nor of any earlier activity on their stream. If it has no
    launch at all, the host was not recorded, and nothing is known. Nothing is known either of
    activities without a correlation id, such as the collectives of an NPU.
    """
    unknown = np.asarray(found.call == UNKNOWN)
    if unknown.all():
        return np.zeros(len(unknown), bool)
    first, stream = _streams(trace, found)
    known_from = np.full(len(first), len(unknown))
    np.minimum.at(known_from, stream[~unknown], np.flatnonzero(~unknown))
    linked = trace.spans["correlation"][found.work] != NONE
    return np.asarray(unknown & linked & (np.arange(len(unknown)) < known_from[stream]))


def held(trace: Trace, found: Launches) -> NDArray[np.bool_]:
    """Return which device activities began late because of work that the trace does not have.

    That work was launched before the recording. Such an activity was in flight as well, or it is
    the first of its stream, and the device ran nothing for longer after its launch than after any
    other launch on an idle device. No launch before it has lost its activity.
    """
    spans, flying = trace.spans, in_flight(trace, found)
    late, known = flying.copy(), found.call != UNKNOWN
    first, _ = _streams(trace, found)
    lost = spans["start"][without_work(trace)].min(initial=_LATEST)
    late[first] |= known[first] & (spans["start"][found.call[first]] <= lost)
    end, start = spans["start"] + spans["length"], spans["start"][found.work]
    ready = np.where(known, end[found.call], spans["start"].min(initial=_LATEST))
    on = spans["device"][found.work]
    for device in distinct(on).tolist():
        selected = np.flatnonzero(on == device)
        ended = np.maximum.accumulate(end[found.work[selected]])[:-1]
        ready[selected[1:]] = np.maximum(ready[selected[1:]], ended)
    delay = start - ready
    usual = int(delay[known & ~late].max(initial=0))
    opens = np.zeros(len(late), bool)
    opens[np.unique(on, return_index=True)[1]] = True
    return late & ((opens & flying) | (delay > np.where(flying, 0, usual).clip(MIN_HELD_NS)))


def earlier_work(trace: Trace, found: Launches, device: int) -> Cover:
    """Return when a device ran work that was launched before the recording and is not in it."""
    spans, selected = trace.spans, trace.spans["device"][found.work] == device
    work, late = found.work[selected], held(trace, found)[selected]
    ended = np.maximum.accumulate((spans["start"] + spans["length"])[work])
    free = np.append(spans["start"].min(initial=_LATEST), ended)[:-1]
    return free[late], spans["start"][work][late]


def _streams(trace: Trace, found: Launches) -> tuple[Numbers, Numbers]:
    """Return the first activity of each stream, and the stream of each activity."""
    spans = trace.spans
    key = spans["device"][found.work] * STREAM_KEY_FACTOR + spans["stream"][found.work]
    _, first, stream = np.unique(key, return_index=True, return_inverse=True)
    return first, stream

"""Why a device, or one of its streams, was idle: each idle nanosecond has one cause.

The launch of the next activity divides a gap (``gaps.py``). The time before it is divided by what
the launching thread did (``host_waits.py``), causes before symptoms.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dynprof.analysis.measures.timeline.breakdown import COLLECTING, COMPILING, RECORDING
from dynprof.analysis.measures.timeline.launches import UNKNOWN as NO_CALL
from dynprof.analysis.measures.timeline.phases import CHECKPOINT, LOADING, OPTIMIZER
from dynprof.analysis.measures.waiting.gaps import EDGE, NONE, cut, cut_by_covers
from dynprof.analysis.measures.waiting.host_waits import (
    ALLOCATING,
    FIRST_USE,
    NO_THREAD,
    PAGEABLE,
    SYNCHRONISING,
    BlockingCalls,
)
from dynprof.analysis.reading.intervals import clipped, cover, distinct, inside, span_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.measures.waiting.gaps import Gaps
    from dynprof.analysis.measures.waiting.host_waits import HostActivity
    from dynprof.analysis.reading.intervals import Cover
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.signedinteger[Any]]
    """Whole numbers; those of indices and codes have 32 bits or less."""

QUEUED, BLOCKED, LATE = "queued", "host blocked", "host late"
NOTHING, UNKNOWN = "nothing to do", "unknown"
KINDS = (BLOCKED, LATE, QUEUED, NOTHING, UNKNOWN)
"""Kinds of idle time, independent of what the host did."""

LAUNCHING, ELSEWHERE = "launching", "elsewhere on the host"
WAITING, STARTING = "waiting in the queue", "starting"
CAUSES = (
    RECORDING, COMPILING, CHECKPOINT, LOADING, COLLECTING, PAGEABLE, SYNCHRONISING, FIRST_USE,
    ALLOCATING, OPTIMIZER, LAUNCHING, ELSEWHERE, WAITING, STARTING, NOTHING, UNKNOWN,
)  # fmt: skip
"""Causes in order of precedence, causes before symptoms."""

PACE_NS = 100_000
"""Time from launch to launch below which the host does nothing but launch."""
_KIND = {name: place for place, name in enumerate(KINDS)}
_CAUSE = {name: place for place, name in enumerate(CAUSES)}
_BLOCK = 1 << 14
"""Number of gaps whose causes are found at a time; more take much memory."""
_SMALL = {"kind": np.int8, "cause": np.int8, "gap": np.int32, "thread": np.int32,
          "call": np.int32, "weight": np.int32}  # fmt: skip
"""Types of columns that hold small numbers; the others are 64 bits."""
_NEVER = int(np.iinfo(np.int64).max)
"""In place of the start of a gap that a trace does not have, in ns."""
_NO_WAITS = (*(np.zeros(0, np.int64) for _ in range(3)), np.zeros(0, bool))


@dataclass(frozen=True)
class Idle:
    """Pieces of idle time in order of time, without overlap; times in ns.

    Attributes:
        start: When each begins.
        end: When it ends.
        kind: Indices in :data:`KINDS`.
        cause: Indices in :data:`CAUSES`.
        gap: Indices of their gaps.
        thread: The host thread that launches the next activity; -1 if unknown.
        call: Index among the trace's spans of the call that made the host wait for the device; -1
            if there is none.
        weight: How often a piece counts: more than once if steps overlap.
    """

    start: Numbers
    end: Numbers
    kind: Numbers
    cause: Numbers
    gap: Numbers
    thread: Numbers
    call: Numbers
    weight: Numbers

    @property
    def time(self) -> Numbers:
        """Duration of each piece times its weight, in ns."""
        return (self.end - self.start) * self.weight

    def of_cause(self, *causes: str) -> NDArray[np.bool_]:
        """Return which pieces have one of these causes."""
        return np.array([name in causes for name in CAUSES], bool)[self.cause]

    def by_cause(self) -> dict[str, int]:
        """Return the idle time of each cause, in ns. They add up to all idle time."""
        return _sums(CAUSES, self.cause, self.time)

    def by_kind(self) -> dict[str, int]:
        """Return the idle time of each kind, in ns. They add up to all idle time."""
        return _sums(KINDS, self.kind, self.time)

    def select(self, which: NDArray[np.bool_] | Numbers | slice) -> Idle:
        """Return some of the pieces."""
        return Idle(*(getattr(self, field.name)[which] for field in fields(self)))

    def cut_at(self, times: Numbers) -> Idle:
        """Return the same pieces, cut at given times."""
        start, end, of = cut(self.start, self.end, times)
        return replace(self.select(of), start=start, end=end)

    def within(self, steps: Sequence[MarkedStep]) -> Idle:
        """Return the pieces within steps, weighted by the number of steps around each."""
        begins = np.array(sorted(step[1] for step in steps), np.int64)
        ends = np.array(sorted(step[1] + step[2] for step in steps), np.int64)
        found = self.cut_at(np.concatenate([begins, ends]))
        open_ = np.searchsorted(begins, found.start, side="right")
        weight = open_ - np.searchsorted(ends, found.start, side="right")
        return replace(found, weight=found.weight * weight).select(weight > 0)


def _sums(names: Sequence[str], codes: Numbers, times: Numbers) -> dict[str, int]:
    found = np.zeros(len(names), np.int64)
    np.add.at(found, codes, times)
    return dict(zip(names, found.tolist(), strict=True))


def idle(
    trace: Trace,
    started: Launches,
    host: HostActivity,
    found: Gaps,
    recorded: Sequence[MarkedStep] = (),
) -> Idle:
    """Return the causes of gaps.

    Args:
        trace: The trace.
        started: Device activities and their launches.
        host: What the host did.
        found: The gaps of a device or of a stream.
        recorded: The steps in which the host causes the gap before the first launch, and the one
            after the last while it does anything. Else there was nothing to do.
    """
    threads = np.append(trace.spans["thread"], NO_THREAD)
    first = [host.first_uses(one) for one in threads[found.launch_call[found.before == EDGE]]]
    pieces = _edges(_cut_at_launches(found), found, recorded, first)
    before = np.append(started.call, NO_CALL)[found.before]
    launching = np.stack([threads[found.launch_call], threads[before]], axis=1).astype(np.int32)
    pace = host.launch_periods(found.launch_call)
    fast = (pace != NONE) & (pace < PACE_NS)
    at = np.searchsorted(pieces.gap, np.arange(0, max(1, len(found.start)), _BLOCK)).tolist()
    blocks = (pieces.select(slice(*ends)) for ends in itertools.pairwise([*at, None]))
    return _in_order(
        [_of_the_host(_with_threads(one, launching, host), host, found, fast) for one in blocks]
    )


def _cut_at_launches(found: Gaps) -> Idle:
    """Return the parts of gaps before and after the launch of the next activity."""
    late = np.full(len(found.start), NONE, np.int8)
    times = np.stack([found.start, found.launched, found.end])
    start, end = times[:-1].ravel(order="F"), times[1:].ravel(order="F")
    gap = np.repeat(np.arange(len(found.start), dtype=np.int32), 2)
    queued = np.where(found.unknown, _KIND[UNKNOWN], _KIND[QUEUED])
    kind = np.stack([late, queued.astype(np.int8)])
    waiting = np.where(found.was_queued, _CAUSE[WAITING], _CAUSE[STARTING])
    waiting = np.where(found.unknown, _CAUSE[UNKNOWN], waiting)
    cause = np.stack([late, waiting.astype(np.int8)])
    one = np.ones(len(start), np.int32)
    pieces = Idle(start, end, kind.ravel(order="F"), cause.ravel(order="F"), gap, -one, -one, one)
    return pieces.select(end > start)


def _edges(
    pieces: Idle, found: Gaps, recorded: Sequence[MarkedStep], first_uses: Sequence[Cover]
) -> Idle:
    """Mark idle time with nothing to do: before the first launch and after the last.

    Before the first launch, the host may use the device or a library for the first time. Then the
    device waits for that.
    """
    begins = np.array([step[1] for step in recorded], np.int64)
    where = cover(begins, begins + np.array([step[2] for step in recorded], np.int64))
    edges = [*where, *(edge for cover in first_uses for edge in cover)]
    outer = ((found.before == EDGE) | (found.after == EDGE))[pieces.gap] & (pieces.kind == NONE)
    result = pieces.select(outer)
    result = result.cut_at(np.concatenate([*edges, found.called[found.before == EDGE]]))
    nothing = (found.after == EDGE)[result.gap] | (result.start < found.called[result.gap])
    for apart in (where, *first_uses):
        nothing &= ~inside(result.start, apart)
    result = replace(
        result,
        kind=np.where(nothing, _KIND[NOTHING], result.kind),
        cause=np.where(nothing, _CAUSE[NOTHING], result.cause),
    )
    return _in_order([pieces.select(~outer), result])


def _with_threads(pieces: Idle, launching: Numbers, host: HostActivity) -> Idle:
    """Set the host thread of each piece: the one that launches next, if it is busy.

    Else it is the thread that launched the activity before, else the thread that marks the steps.

    Args:
        pieces: The pieces.
        launching: For each gap the thread that launches next, and the one that launched before.
        host: What the host did.
    """
    late, pairs = pieces.kind == NONE, launching[pieces.gap]
    parts = [pieces.select(~late)]
    for pair in np.unique(pairs[late], axis=0).tolist():
        subset = pieces.select(late & (pairs == pair).all(axis=1))
        likely = [thread for thread in dict.fromkeys([*pair, host.main]) if thread != NO_THREAD]
        busy = [host.busy(thread) for thread in likely] if len(likely) > 1 else []
        start, end, of, first = cut_by_covers(subset.start, subset.end, busy)
        otherwise = host.main if host.main != NO_THREAD else [*likely, NO_THREAD][0]
        thread = np.array([*likely, otherwise], np.int64)[first]
        parts.append(replace(subset.select(of), start=start, end=end, thread=thread))
    return _in_order(parts)


def _in_order(parts: Sequence[Idle]) -> Idle:
    start = np.concatenate([part.start for part in parts])
    order = np.argsort(start, kind="stable")
    columns = {field.name: [getattr(part, field.name) for part in parts] for field in fields(Idle)}
    return Idle(
        **{
            name: np.concatenate(column, dtype=_SMALL.get(name, np.int64))[order]
            for name, column in columns.items()
        }
    )


def _of_the_host(pieces: Idle, host: HostActivity, found: Gaps, fast: NDArray[np.bool_]) -> Idle:
    """Set the causes of the time in which the device waited for a launch.

    Args:
        pieces: The pieces.
        host: What the host did.
        found: Their gaps.
        fast: Mask of the gaps before which the host does nothing but launch.
    """
    on_host = pieces.kind == NONE
    after = _after_waits(pieces.select(on_host), host, found)
    parts, last = [pieces.select(~on_host)], found.start[found.after == EDGE].min(initial=_NEVER)
    for thread in distinct(pieces.thread[on_host]).tolist():
        subset = pieces.select(on_host & (pieces.thread == thread))
        subset = subset.cut_at(np.concatenate(clipped(host.busy(thread), int(last), _NEVER)))
        doing, calls = host.causes(thread), host.blocking(thread)
        layers = [*doing.items(), *((name, (after[name].start, after[name].end)) for name in after)]
        layers.sort(key=lambda layer: _CAUSE[layer[0]])  # stable: calls stay first within one cause
        start, end, of, first = cut_by_covers(subset.start, subset.end, [one for _, one in layers])
        subset = replace(subset.select(of), start=start, end=end)
        names = np.array([*(_CAUSE[name] for name, _ in layers), NONE], np.int64)[first]
        rest = np.where(fast[subset.gap], _CAUSE[LAUNCHING], _CAUSE[ELSEWHERE])
        ended = (names == NONE) & (found.after == EDGE)[subset.gap]
        ended &= ~inside(start, host.busy(thread))
        call = np.append(calls.call, NO_CALL)[span_at(start, calls.start, calls.end)]
        kind = np.where(call == NO_CALL, _KIND[LATE], _KIND[BLOCKED])
        for name, one in after.items():
            late = (kind == _KIND[LATE]) & (names == _CAUSE[name])
            waited = np.append(one.call, NO_CALL)[span_at(start, one.start, one.end)]
            call = np.where(late, waited, call)
        kind = np.where(ended, _KIND[NOTHING], kind)
        cause = np.where(ended, _CAUSE[NOTHING], np.where(names == NONE, rest, names))
        parts.append(replace(subset, kind=kind, cause=cause, call=call))
    return _in_order(parts)


def _after_waits(pieces: Idle, host: HostActivity, found: Gaps) -> dict[str, BlockingCalls]:
    """Return the part of gaps that comes from a waiting call that left the device without work.

    Without the call, the host would have been ahead by the time the call had lasted when the gap
    began. The call makes a gap longer by at most this time.
    """
    first = np.append(np.ones(len(pieces.gap[:1]), bool), pieces.gap[1:] != pieces.gap[:-1])
    first &= (pieces.start == found.start[pieces.gap]) & (found.before[pieces.gap] != EDGE)
    result = []
    for thread in distinct(pieces.thread[first]).tolist():
        calls, gap = host.blocking(thread), pieces.gap[first & (pieces.thread == thread)]
        begin = found.start[gap]
        place = np.searchsorted(calls.start, begin, side="left") - 1
        gap, begin, place = (one[place >= 0] for one in (gap, begin, place))
        open_ = calls.end[place] >= begin
        gap, begin, place = (one[open_] for one in (gap, begin, place))
        until = np.minimum(begin + calls.end[place] - calls.start[place], found.launched[gap])
        result.append((calls.call[place], begin, until, calls.pageable[place]))
    call, start, end, pageable = (
        np.concatenate(column) for column in zip(*result, _NO_WAITS, strict=True)
    )
    order = np.argsort(start, kind="stable")
    order = order[(end > start)[order]]
    named = {PAGEABLE: order[pageable[order]], SYNCHRONISING: order[~pageable[order]]}
    return {
        name: BlockingCalls(call[some], start[some], end[some], pageable[some])
        for name, some in named.items()
    }

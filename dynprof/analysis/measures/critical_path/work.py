"""Device activities by stream and in order of launch, for the critical path."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.measures.timeline.in_flight import held, in_flight
from dynprof.analysis.measures.timeline.launches import STREAM_KEY_FACTOR, UNKNOWN
from dynprof.analysis.measures.timeline.steps import from_before
from dynprof.analysis.reading.events import COPIES
from dynprof.analysis.reading.spans import distinct

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dynprof.analysis.measures.timeline.launches import Launches
    from dynprof.analysis.measures.timeline.steps import MarkedStep
    from dynprof.analysis.reading.trace import Trace

    Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Work:
    """Device activities in order of start; times in ns.

    The copies that their call takes part in appear again at the end, until the call's end only.

    Attributes:
        place: Indices among the trace's spans.
        call: Indices of the calls that launched them; -1 if none was recorded.
        start: When each began, but not before the start of the path, nor while the previous one
            of its stream ran.
        end: When each ended.
        launched: When its call began. It is limited to its own start, because clocks may differ.
        called: When its call ended.
        thread: The thread of its call; -1 if unknown.
        key: Its device and stream in one number.
        in_flight: Mask of those that were launched before the recording began.
        held: Mask of those that began late because of work that the trace does not have.
        of_no_step: Mask of those in flight, if steps are marked.
    """

    place: Numbers
    call: Numbers
    start: Numbers
    end: Numbers
    launched: Numbers
    called: Numbers
    thread: Numbers
    key: Numbers
    in_flight: NDArray[np.bool_]
    held: NDArray[np.bool_]
    of_no_step: NDArray[np.bool_]

    @cached_property
    def streams(self) -> dict[int, Stream]:
        """The work of each stream, by key."""
        return {int(key): Stream(self, key) for key in distinct(self.key)}

    @cached_property
    def shortest_launch(self) -> int:
        """The shortest time from the start of a call to the start of its activity.

        Only activities count whose stream was free then; 0 if there is none.
        """
        free = self.end[self.before] <= self.launched
        free |= self.before == UNKNOWN
        delays = (self.start - self.launched)[free & (self.call != UNKNOWN) & ~self.held]
        return int(delays.min()) if len(delays) else 0

    @cached_property
    def unlinked(self) -> int:
        """How long the streams of which no launch is known worked, if others have launches."""
        known, every = (np.unique(self.key[one]) for one in (self.call != UNKNOWN, slice(None)))
        streams = np.setdiff1d(every, known) if len(known) else known
        apart = np.isin(self.key, streams) & ~self.in_flight
        return int((self.end - self.start)[apart].sum())

    @cached_property
    def before(self) -> Numbers:
        """The activity that ended last on the same stream before each began; -1 for none."""
        found = np.full(len(self.place), -1, np.int64)
        for key in self.streams:
            selected = np.flatnonzero(self.key == key)
            order = selected[np.lexsort((selected, self.end[selected]))]
            last = np.searchsorted(self.end[order], self.start[selected], side="right") - 1
            while (wrong := (last >= 0) & (order[last] >= selected)).any():
                last[wrong] -= 1  # it has no length and is not earlier
            found[selected] = np.where(last >= 0, order[last], -1)
        return found


class Stream:
    """The activities of one stream, in order of launch.

    Args:
        work: All device activities.
        key: The key of device and stream.
    """

    def __init__(self, work: Work, key: int) -> None:
        selected = np.flatnonzero(work.key == key)
        order = selected[np.lexsort((selected, work.launched[selected]))]
        self._order: list[int] = order.tolist()
        self._launched: list[int] = work.launched[order].tolist()
        self._ended: list[int] = np.maximum.accumulate(work.end[order]).tolist()

    def last(self, launched_before: int, ended_by: int) -> int:
        """Return the last work launched before one time that had ended by another; -1 for none."""
        launched, ended = self._launched, self._ended
        place = min(bisect_left(launched, launched_before), bisect_right(ended, ended_by))
        return self._order[place - 1] if place else -1

    def first(self, launched_from: int) -> int:
        """Return the first work launched from a time on; -1 for none."""
        place = bisect_left(self._launched, launched_from)
        return self._order[place] if place < len(self._order) else -1


def work_between(trace: Trace, found: Launches, marked: list[MarkedStep]) -> Work:
    """Return device activities that ended after the steps began and were launched before their end.

    What was launched before the recording counts until the others have ended.
    """
    begin, end = span_of(marked)
    spans, launches, flying = trace.spans, found.call, in_flight(trace, found)
    over = spans["start"] + spans["length"]
    start, done, known = spans["start"][found.work], over[found.work], launches != UNKNOWN
    launched = np.where(known, np.minimum(spans["start"][launches], start), start)
    launched = np.where(flying, np.minimum(start, begin), launched)
    called = np.where(known, over[launches], start)
    chosen = (done > begin) & (launched < end)
    chosen &= ~flying | (done <= done[chosen & ~flying].max(initial=end))
    wanted = np.flatnonzero(chosen)
    key = spans["device"][found.work] * STREAM_KEY_FACTOR + spans["stream"][found.work]
    start[wanted] = _in_order(key[wanted], np.maximum(start[wanted], begin), done[wanted])
    # A call may take part in its copy. That part is appended in addition to the whole copy.
    waits = blocking_copies(trace, found)[wanted]
    waits &= (start < called)[wanted] & (called < done)[wanted]
    shared = wanted[waits]
    ended = np.concatenate([done[wanted], called[shared]])
    wanted = np.concatenate([wanted, shared])
    place, call = found.work[wanted], launches[wanted]
    return Work(
        place=place,
        call=call,
        start=start[wanted],
        end=ended,
        launched=launched[wanted],
        called=called[wanted],
        thread=np.where(known, spans["thread"][launches], UNKNOWN)[wanted],
        key=key[wanted],
        in_flight=flying[wanted],
        held=held(trace, found)[wanted],
        of_no_step=from_before(trace, marked, found)[place],
    )


def span_of(marked: list[MarkedStep]) -> tuple[int, int]:
    """Return the start of the first step and the end of the last on the host."""
    ends = [since + length for _, since, length in marked]
    return min((since for _, since, _ in marked), default=0), max(ends, default=0)


def _in_order(key: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """Return when each activity had its stream alone: the previous one may have run until then."""
    result = start.copy()
    for stream in distinct(key).tolist():
        selected = np.flatnonzero(key == stream)
        reached = np.maximum.accumulate(end[selected])[:-1]
        longer = reached <= end[selected[1:]]
        later = selected[1:][longer]
        result[later] = np.maximum(start[later], reached[longer])
    return result


def blocking_copies(trace: Trace, found: Launches) -> NDArray[np.bool_]:
    """Return which device activities are copies that their call waits for."""
    waits = trace.named(lambda name: "emcpy" in name and "Async" not in name)[found.call]
    pageable = trace.named(lambda name: "Pageable" in name)[found.work]
    copies: NDArray[np.bool_] = trace.category(COPIES)[found.work]
    copies &= (found.call != UNKNOWN) & (waits | pageable)
    return copies

"""Nesting of spans, and the own time of each span."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from dynprof.analysis.reading.intervals import distinct

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

ROOT = -1
"""The parent of a span that is inside no other."""
_MAX_CROSSINGS = 4
"""Number of crossing spans of a thread to fix one by one, before a loop over all its spans."""
_NEVER = int(np.iinfo(np.int64).max)


def parents(start: Numbers, length: Numbers, thread: Numbers) -> Numbers:
    """Return the index of the innermost span that contains each span, on the same thread.

    As in torch's ``key_averages()``, a span that ends after another one is not inside it, even if
    it began there. Labels of coroutines and annotations that stay open cross in this way.

    Args:
        start: Start times, in ns, ascending. Of spans that start together, the longer is first.
        length: Durations, in ns.
        thread: Thread numbers.
    """
    return _on_each_thread(_containing, start, length, thread)


def callers(start: Numbers, length: Numbers, thread: Numbers) -> Numbers:
    """Return the index of the innermost span that was open when each span began.

    This is the rule of a call stack: a frame that ends after its caller counts as ending with it.
    Torch writes such frames if a recording ends inside them. The arguments are those of
    :func:`parents`.
    """
    return _on_each_thread(_open_at_start, start, length, thread)


def _on_each_thread(
    rule: Callable[[Numbers, Numbers], Numbers], start: Numbers, length: Numbers, thread: Numbers
) -> Numbers:
    found = np.full(len(start), ROOT, np.int64)
    order = np.argsort(thread, kind="stable")
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    end = start + length
    for one, other in pairwise([0, *edges.tolist(), len(order)]):
        selected = order[one:other]
        found[selected] = np.append(selected, ROOT)[rule(start[selected], end[selected])]
    return found


def _containing(begin: Numbers, end: Numbers) -> Numbers:
    """Return for each span the last earlier span that contains it."""
    return _last_until(np.maximum(end, begin + 1), end)  # an end contains no empty span


def _last_until(least: Numbers, end: Numbers) -> Numbers:
    """Return for each span the last earlier span that ends at its ``least`` or later."""
    found = np.arange(len(end)) - 1
    wrong = np.flatnonzero(end[found[1:]] < least[1:]) + 1
    while len(wrong):
        found[wrong] = found[found[wrong]]  # spans between the two end even earlier
        wrong = wrong[found[wrong] != ROOT]
        wrong = wrong[end[found[wrong]] < least[wrong]]
    return found


def _open_at_start(begin: Numbers, end: Numbers) -> Numbers:
    """Return for each span the last earlier span that is open. Changes ``end`` if spans cross."""
    for _ in range(_MAX_CROSSINGS):
        found = _last_until(begin + 1, end)
        over = np.flatnonzero((found != ROOT) & (end > end[found]))
        if not len(over):
            return found
        end[over[0]] = end[found[over[0]]]  # everything before the first crossing is correct
    return _crossing(begin.tolist(), end.tolist())


def _crossing(begins: list[int], ends: list[int]) -> Numbers:
    """Return the open spans where spans cross; two lists are the stack of open spans."""
    found: list[int] = []
    outer, limits = [ROOT], [_NEVER]
    for place, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        while limits[-1] <= begin:
            limits.pop()
            outer.pop()
        found.append(outer[-1])
        outer.append(place)
        limits.append(end if end < limits[-1] else limits[-1])
    return np.array(found, np.int64)


def not_drawn_by_perfetto(
    start: Numbers, length: Numbers, thread: Numbers, threads: Sequence[tuple[object, object]]
) -> int:
    """Return the number of spans that Perfetto leaves out, which it calls an import error.

    These cross an earlier span on their thread or stream. Perfetto 52 takes a thread with a
    negative number for the main thread of its process.

    Args:
        start: Start times, in ns, ascending. Of spans that start together, the longer is first.
        length: Durations, in ns.
        thread: Indices of their threads.
        threads: The process and the number of each thread.
    """
    drawn = [(str(pid), str(pid if str(tid).startswith("-") else tid)) for pid, tid in threads]
    count, open_ = 0, {track: [_NEVER] for track in drawn}
    columns = (start, start + length, thread)
    for begin, end, place in zip(*(column.tolist() for column in columns), strict=True):
        ends = open_[drawn[place]]
        while ends[-1] <= begin:
            ends.pop()
        if end > ends[-1]:
            count += 1
        else:
            ends.append(end)
    return count


def counted_twice(start: Numbers, length: Numbers, thread: Numbers) -> tuple[int, int]:
    """Return how many spans cross earlier ones, and the time that several own times count, in ns.

    Spans inside others do not matter: an outer span gives them its time. The arguments are those
    of :func:`parents`.
    """
    count = twice = 0
    for one in distinct(thread).tolist():
        selected = thread == one
        begin, end = start[selected], (start + length)[selected]
        reached = np.maximum.accumulate(end)[:-1]
        crosses = (begin[1:] < reached) & (end[1:] > reached)
        count += int(crosses.sum())
        twice += int((reached - begin[1:])[crosses].sum())
    return count, twice


def own_time(length: Numbers, parent: Numbers) -> Numbers:
    """Return each span's duration without its children's, in ns.

    Own times add up to the durations of the spans without a parent. They are negative, as in
    torch, for a span whose children cross and together last longer than it does.
    """
    inside = parent != ROOT
    spent = np.bincount(parent[inside], weights=length[inside], minlength=len(length))
    return length - spent.astype(np.int64)

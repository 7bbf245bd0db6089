"""Spans of time: their unions and overlaps, how they nest, and the self time of each."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Cover = tuple[Numbers, Numbers]
    "Starts and ends of disjoint spans, ascending."

ROOT = -1
"""The parent of a span that is inside no other."""
_MAX_CROSSINGS = 4
"""Number of crossing spans of a thread to fix one by one, before a loop over all its spans."""
_NEVER = int(np.iinfo(np.int64).max)


def cover(start: Numbers, end: Numbers) -> Cover:
    """Return the union of spans."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate([[True], start[1:] > end[:-1]])
    last = np.concatenate([first[1:], [True]])
    return start[first], end[last]


def covered(where: Cover) -> int:
    """Return the total length of a cover, in the unit of the spans."""
    return int((where[1] - where[0]).sum())


def covered_until(where: Cover, time: Numbers) -> Numbers:
    """Return the length of a cover before each time."""
    begins, ends = where
    sums = np.concatenate([[0], np.cumsum(ends - begins)])
    place = np.searchsorted(begins, time, side="right")
    last = np.append(ends, 0)[place - 1]
    found: Numbers = sums[place] - np.where(place > 0, np.maximum(last - time, 0), 0)
    return found


def inside(times: Numbers, where: Cover) -> NDArray[np.bool_]:
    """Return which times are within a cover; the end of each span is excluded."""
    return np.asarray(span_at(times, *where) >= 0)


def span_at(times: Numbers, start: Numbers, end: Numbers) -> Numbers:
    """Return the span that contains each time; -1 for none. The spans must not overlap."""
    place = np.searchsorted(start, times, side="right") - 1
    return np.where(times < np.append(end, 0)[place], place, -1) if len(end) else place


def clipped(where: Cover, begin: int, end: int) -> Cover:
    """Return the part of a cover between two times."""
    begins, ends = where
    some = slice(np.searchsorted(ends, begin, "right"), np.searchsorted(begins, end, "left"))
    starts, ends = np.maximum(begins[some], begin), np.minimum(ends[some], end)
    inside = ends > starts
    return starts[inside], ends[inside]


def layered(covers: Mapping[str, Cover], begin: Numbers, end: Numbers) -> dict[str, Numbers]:
    """Return how much each cover adds to those before it, within each of some spans of time."""
    found, before = dict[str, "Numbers"](), np.zeros(len(begin), np.int64)
    whole = begin[:0], end[:0]
    for name, where in covers.items():
        whole = united(whole, where)
        together = covered_until(whole, end) - covered_until(whole, begin)
        found[name], before = together - before, together
    return found


def united(*covers: Cover) -> Cover:
    """Return the union of covers."""
    return cover(*(np.concatenate(ends) for ends in zip(*covers, strict=True)))


def without(one: Cover, other: Cover) -> Cover:
    """Return the part of a cover that is outside another one."""
    times = distinct(np.concatenate([*one, *other]))
    begins, ends = times[:-1], times[1:]
    kept = inside(begins, one) & ~inside(begins, other)
    return cover(begins[kept], ends[kept])


def both(one: Cover, other: Cover) -> int:
    """Return the length of the overlap of two covers."""
    return covered(one) + covered(other) - covered(united(one, other))


def distinct(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct numbers, ascending.

    NumPy's own ``unique`` hashes since 2.3, which takes forty times as long if most differ.
    """
    ordered = np.sort(numbers, axis=None)
    return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))]


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
    """Return how many spans cross earlier ones, and the time that several self times count, in ns.

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


def self_time(length: Numbers, parent: Numbers) -> Numbers:
    """Return each span's duration without its children's, in ns.

    Self times add up to the durations of the spans without a parent. They are negative, as in
    torch, for a span whose children cross and together last longer than it does.
    """
    inside = parent != ROOT
    spent = np.bincount(parent[inside], weights=length[inside], minlength=len(length))
    return length - spent.astype(np.int64)

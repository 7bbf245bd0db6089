"""Functions on spans of time: unions, nesting and numbers, compared with a plain count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.analysis.reading.spans import (
    ROOT,
    both,
    callers,
    clipped,
    counted_twice,
    cover,
    covered,
    distinct,
    layered,
    parents,
    self_time,
)
from tests.unit.analysis.made_jobs import Job

if TYPE_CHECKING:
    from pathlib import Path

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 15)), max_size=25)


def columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return begins and lengths, sorted as in traces."""
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    table = np.array(ordered, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def parents_one_by_one(start: list[int], length: list[int]) -> list[int]:
    """Return the parents as torch's ``key_averages()`` finds them."""
    found, stack = [], list[tuple[int, int]]()
    for place, (begin, took) in enumerate(zip(start, length, strict=True)):
        while stack and (begin >= stack[-1][1] or begin + took > stack[-1][1]):
            stack.pop()
        found.append(stack[-1][0] if stack else ROOT)
        stack.append((place, begin + took))
    return found


def callers_one_by_one(start: list[int], length: list[int]) -> list[int]:
    """Return what was open at each start; a span ends with the one that it began in."""
    found, stack = [], list[tuple[int, int]]()
    for place, (begin, took) in enumerate(zip(start, length, strict=True)):
        while stack and stack[-1][1] <= begin:
            stack.pop()
        end = begin + took
        found.append(stack[-1][0] if stack else ROOT)
        stack.append((place, min(end, stack[-1][1]) if stack else end))
    return found


@given(SPANS)
def test_parents_contain_and_callers_are_open(spans: list[tuple[int, int]]) -> None:
    """For any spans, also crossing and empty ones."""
    start, length = columns(spans)
    thread = np.zeros(len(start), np.int64)
    found = parents(start, length, thread)
    assert found.tolist() == parents_one_by_one(start.tolist(), length.tolist())
    called = callers(start, length, thread)
    assert called.tolist() == callers_one_by_one(start.tolist(), length.tolist())
    self_ns = self_time(length, found)
    assert self_ns.sum() == length[found == ROOT].sum()


def test_spans_of_threads_do_not_nest() -> None:
    """A span can only be inside one of its own thread."""
    start, length = np.array([0, 1, 2]), np.array([10, 5, 2])
    assert parents(start, length, np.array([0, 1, 0])).tolist() == [ROOT, ROOT, 0]


def test_self_time_is_what_children_leave() -> None:
    """Children that cross may leave less than nothing, as in torch."""
    self_ns = self_time(np.array([10, 4, 3, 2]), np.array([ROOT, 0, 0, 2]))
    assert self_ns.tolist() == [3, 4, 1, 2]
    assert self_time(np.array([15, 10, 10]), np.array([ROOT, 0, 0])).tolist() == [-5, 10, 10]


@given(SPANS, SPANS, st.integers(0, 45), st.integers(0, 45))
def test_covers_are_sets_of_moments(
    one: list[tuple[int, int]], other: list[tuple[int, int]], begin: int, end: int
) -> None:
    """Union, overlap and clipping cover the right moments."""

    def moments(spans: list[tuple[int, int]]) -> set[int]:
        return {moment for start, length in spans for moment in range(start, start + length)}

    covers = []
    for spans in (one, other):
        start, length = columns(spans)
        covers.append(cover(start, start + length))
    assert [covered(c) for c in covers] == [len(moments(one)), len(moments(other))]
    assert both(*covers) == len(moments(one) & moments(other))
    within = {moment for moment in moments(one) if begin <= moment < end}
    assert covered(clipped(covers[0], begin, end)) == len(within)


@pytest.mark.parametrize("spans", [[], [(3, 0)]])
def test_nothing_covers_nothing(spans: list[tuple[int, int]]) -> None:
    """Empty lists and empty spans cover nothing."""
    start, length = columns(spans)
    assert covered(cover(start, start + length)) == 0


@given(SPANS)
def test_time_counted_twice_is_self_time_beyond_the_clock(spans: list[tuple[int, int]]) -> None:
    """Self times add up to it and to the moments in which any span is open."""
    start, length = columns(spans)
    one = np.zeros(len(start), np.int64)
    self_ns = self_time(length, parents(start, length, one))
    passed = {at for begin, took in spans for at in range(begin, begin + took)}
    assert counted_twice(start, length, one)[1] == self_ns.sum() - len(passed)


def test_a_remark_says_that_labels_cross(tmp_path: Path) -> None:
    """Two coroutines wait at the same time: 100 us count for both, and nested labels do not."""
    job = Job()
    job.step()
    job.host("serve", 100, 300, "user_annotation")
    job.host("serve", 300, 300, "user_annotation")
    job.host("aten::mm", 310, 50)
    (remark,) = job.measured(tmp_path).truncation.sentences()
    assert remark.startswith("1 label or operator crosses another of the same thread")
    assert "self times add up to 0.1 ms more than the time that passed" in remark
    job.events = [event for event in job.events if event["ts"] != 300]
    assert job.measured(tmp_path).truncation.sentences() == []


@pytest.mark.parametrize("count", [0, 1, 2, 50, 3000])
def test_distinct_numbers_are_those_of_a_set(count: int) -> None:
    """The numbers are sorted, and include the minimum and the maximum."""
    choose = np.random.default_rng(count)
    numbers = choose.integers(-20, 20, count)
    if count > 2:
        numbers[:2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert distinct(numbers).tolist() == sorted(set(numbers.tolist()))


@pytest.mark.parametrize("seed", range(6))
def test_layers_are_counted_tick_by_tick(seed: int) -> None:
    """Each tick of a span counts for the first cover around it; spans may overlap or be empty."""
    choose = np.random.default_rng(seed)
    covers, ticks = {}, dict[str, set[int]]()
    for name in "abc":
        starts = choose.integers(0, 60, choose.integers(0, 6))
        ends = starts + choose.integers(1, 12, len(starts))
        covers[name] = cover(starts, ends)
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        ticks[name] = {tick for start, end in pairs for tick in range(start, end)}
    begin = choose.integers(-5, 70, 8)
    end = begin + choose.integers(0, 30, 8)
    found = layered(covers, begin, end)
    for place, span in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        left = set(range(*span))
        for name, inside in ticks.items():
            assert found[name][place] == len(left & inside)
            left -= inside

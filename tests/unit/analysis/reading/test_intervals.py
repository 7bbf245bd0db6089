"""Functions on numbers and spans of time."""

from __future__ import annotations

import numpy as np
import pytest

from dynprof.analysis.reading.intervals import cover, distinct, layered


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

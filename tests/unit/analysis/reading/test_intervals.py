"""Functions on numbers and spans of time."""

from __future__ import annotations

import numpy as np
import pytest

from dynprof.analysis.reading.intervals import distinct


@pytest.mark.parametrize("count", [0, 1, 2, 50, 3000])
def test_distinct_numbers_are_those_of_a_set(count: int) -> None:
    """The numbers are sorted, and include the minimum and the maximum."""
    choose = np.random.default_rng(count)
    numbers = choose.integers(-20, 20, count)
    if count > 2:
        numbers[:2] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    assert distinct(numbers).tolist() == sorted(set(numbers.tolist()))

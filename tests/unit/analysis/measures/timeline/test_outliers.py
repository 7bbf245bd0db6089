"""Outlier steps, compared with a few plain lines, and cases without any."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.timeline.steps import outliers
from tests.unit.analysis.made_jobs import STEP, Job

if TYPE_CHECKING:
    from pathlib import Path


def plain(lengths: list[int]) -> set[int]:
    """Return the places of lengths with a modified z-score above 3.5 and at least 1.5 medians."""
    median = statistics.median(lengths)
    deviation = statistics.median(abs(one - median) for one in lengths)
    return {
        place
        for place, one in enumerate(lengths)
        if len(lengths) > 2 and one >= 1.5 * median and 0.6745 * (one - median) > 3.5 * deviation
    }


def test_random_lengths() -> None:
    """Lengths are steady, varying or heavy-tailed; outliers are named, the longest first."""
    source = random.Random(0)  # noqa: S311 - nothing is secret here
    draws = (
        lambda: source.randint(90, 110),
        lambda: source.randint(1, 1000),
        lambda: int(100 * source.paretovariate(1)),
    )
    for number in range(200):
        lengths = [draws[number % 3]() for _ in range(source.randint(1, 40))]
        found = outliers(lengths)
        assert set(found) == plain(lengths), lengths
        named = [lengths[place] for place in found]
        assert named == sorted(named, reverse=True)


def test_evenly_spread_lengths_have_no_outlier() -> None:
    """Evenly spread lengths have no outlier, however far the longest is from the shortest."""
    for count in range(2, 60):
        assert outliers([10 + 1000 * place for place in range(count)]) == []


@pytest.mark.parametrize(
    ("lengths", "found"),
    [
        ([], []),
        ([5], []),
        ([10, 1000], []),  # neither is known to be the usual one
        ([10, 11, 1000], [2]),
        ([10, 500, 1000], []),
        ([10, 10, 14], []),
        ([41, 45, 50, 57, 57, 60, 90, 1056], [7]),
        ([7, 7, 7, 30, 7, 7, 7, 60], [7, 3]),
        ([0, 0, 5], []),  # a multiple of zero is no limit
    ],
)
def test_few_lengths(lengths: list[int], found: list[int]) -> None:
    """Three steps are enough for an outlier; two are not."""
    assert outliers(lengths) == found


def test_two_steps_that_differ_have_no_median(tmp_path: Path) -> None:
    """A median of two is a length that neither has; they are named in their order."""
    for second, said in (
        (50, "The two steps take 1 ms and 0.05 ms; shares are of both."),
        (900, "A step takes 0.95 ms (median of 2 steps, from 0.9 ms to 1 ms)."),
    ):
        job = Job()
        job.step()
        job.step(1, second)
        job.host("aten::mm", 10, 800)
        assert job.measured(tmp_path).breakdown.sentences()[0] == said


def test_two_usual_steps_that_differ_are_next_to_their_outlier(tmp_path: Path) -> None:
    """With an outlier, the median of all three is named."""
    job = Job()
    for number, length in enumerate((300, 500, 60_000)):
        job.step(number, length)
        job.host("aten::mm", number * STEP, length)
    said = job.measured(tmp_path).without_outliers.breakdown.sentences()[0]
    assert said == (
        "A step takes 0.5 ms (median of 3 steps); step 2 took 60 ms, 120 times the median."
    )

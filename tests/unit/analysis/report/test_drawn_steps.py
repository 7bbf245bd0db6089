"""The report draws the slowest of many steps, each with its neighbours."""

from __future__ import annotations

import random

import pytest

from dynprof.analysis.report.sections import steps_to_draw


@pytest.mark.parametrize("seed", range(8))
def test_the_slowest_and_their_neighbours(seed: int) -> None:
    """At least a third of the drawn steps are slow ones; the skipped steps add up."""
    source = random.Random(seed)  # noqa: S311 - nothing is secret here
    lengths = [source.random() for _ in range(source.randint(0, 300))]
    rows = steps_to_draw(lengths, 100)
    places = [place for place, _ in rows]
    left_out = set(range(len(lengths))) - set(places)
    assert places == sorted(set(places))
    assert len(places) <= 100
    assert len(places) > 97 or not left_out
    assert sum(skipped for _, skipped in rows) + len(rows) == (places[-1] + 1 if places else 0)
    slowest = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    assert set(slowest[: min(33, len(lengths))]) <= set(places)


def test_an_outlier_in_the_middle_has_its_neighbours() -> None:
    """There is room for three steps."""
    lengths = [1.0] * 10
    lengths[5] = 9.0
    assert steps_to_draw(lengths, 3) == [(4, 4), (5, 0), (6, 0)]

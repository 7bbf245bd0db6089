"""Changes in synthetic series, and the sentence about a capture and its baseline."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING

import pytest

from dynprof.analysis.measures.difference import against_baseline, change_points, series
from tests.unit.analysis.vendor_files.captured import window

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


REPEATS = 300


def noisy(rng: random.Random, levels: Sequence[float], share: float = 0.02) -> list[float]:
    """Return values around levels, with normal variation."""
    return [rng.gauss(level, share * level) for level in levels]


@pytest.mark.parametrize("share", [0.0, 0.01, 0.03])
def test_a_series_without_a_change_has_none(share: float) -> None:
    """In 300 series of usual variation, of 2 to 40 values, at most 1% have a false change."""
    rng = random.Random(1)  # noqa: S311
    alarms = sum(
        bool(change_points(noisy(rng, [100.0] * rng.randrange(2, 41), share)))
        for _ in range(REPEATS)
    )
    assert alarms <= 0.01 * REPEATS


def test_one_slow_baseline_is_no_change() -> None:
    """A checkpoint in one window, or in two, moves no median."""
    for place in range(12):
        values = [22.0 + 0.1 * (number % 3) for number in range(12)]
        values[place] = 300.0
        assert change_points(values) == []


@pytest.mark.parametrize("factor", [1.5, 3.2, 0.5])
def test_a_change_is_found_at_its_first_baseline(factor: float) -> None:
    """Wherever it is, from three baselines on each side; the medians are those of its sides."""
    rng = random.Random(2)  # noqa: S311
    for _ in range(REPEATS):
        first = rng.randrange(3, 10)
        values = noisy(rng, [100.0] * first + [100.0 * factor] * (12 - first))
        found = series("step", "step", values, 0.0)
        (change,) = found.changes
        assert change.first == first
        assert change.before_ns == statistics.median(values[:first])
        assert change.after_ns == statistics.median(values[first:])


def test_a_slow_first_baseline_hides_no_change() -> None:
    """A job that begins slowly, and doubles its steps later, has one change."""
    rng = random.Random(4)  # noqa: S311
    for _ in range(REPEATS):
        first = rng.randrange(3, 10)
        values = noisy(rng, [100.0] * first + [200.0] * (12 - first))
        values[0] = rng.uniform(100.0, 400.0)
        assert change_points(values) == [first]


def test_several_changes_are_found() -> None:
    """A slowdown that ends is two changes."""
    rng = random.Random(3)  # noqa: S311
    values = noisy(rng, [22.0] * 10 + [70.0] * 8 + [22.0] * 10)
    assert change_points(values) == [10, 18]


def test_small_changes_do_not_count() -> None:
    """Nothing counts below 5%, nor below what is little of a step."""
    assert change_points([100.0] * 6 + [104.0] * 6) == []
    assert change_points([100.0] * 6 + [106.0] * 6) == [6]
    assert change_points([1.0] * 6 + [2.0] * 6, least=5.0) == []
    assert change_points([0.0] * 6 + [9.0] * 6, least=5.0) == [6]


def test_a_capture_is_compared_with_the_last_baseline_like_it(tmp_path: Path) -> None:
    """Other settings, later baselines and other captures do not count."""
    every = {"minutes": 30}
    assert against_baseline(window(tmp_path, 0, 30, every=every)) == ""
    window(tmp_path, 1, 22, every=every)
    window(tmp_path, 2, 40, every=every, with_stack=True)
    window(tmp_path, 3, 50)
    slow = window(tmp_path, 4, 70)
    usual = window(tmp_path, 5, 22)
    window(tmp_path, 6, 90, every=every)
    (odd,) = (tmp_path / "step_2-2_19700101T020000Z").glob("info/*.json")
    text = odd.read_text().replace("2026-11-22T02:00", "soon")
    odd.write_text(text.replace('"every"', '"experimental_config": 7, "every"'))
    said = against_baseline(slow)
    assert said.startswith("A step takes 70 ms; the baseline of ")
    assert said.endswith(" took 22 ms; aten::mm grew most, by 48 ms.")
    assert against_baseline(usual).startswith("A step takes 22 ms, as usual: the baseline of ")


def test_varying_steps_are_not_as_usual_if_they_are_longer(tmp_path: Path) -> None:
    """Three steps that vary decide nothing: the sentence says so, not that 47% is usual."""
    window(tmp_path, 1, (24, 78, 132), every={"minutes": 30})
    said = against_baseline(window(tmp_path, 2, (40, 115, 140)))
    assert said.startswith("A step takes 115 ms; the baseline of ")
    assert said.endswith(" took 78 ms; the steps vary too much to tell whether that is a change.")


def test_a_baseline_shows_what_is_usual_only_if_older_times_agree(tmp_path: Path) -> None:
    """The hour before, or else older baselines, were faster than the last baseline."""
    every = {"minutes": 30}
    for hour in (1, 2, 3):
        window(tmp_path, hour, 24, {"step_before_ms": 23}, every=every)
    window(tmp_path, 4, 145, {"step_before_ms": 100}, every=every)
    start = "A step takes 144 ms, like the baseline of "
    pace = "but just before this window a step took 120 ms, and"
    slow = window(tmp_path, 5, 144, {"step_before_ms": 120, "step_hour_ms": 24})
    assert against_baseline(slow).startswith(start)
    assert against_baseline(slow).endswith(f" (145 ms), {pace} in the hour before 24 ms.")
    no_hour = window(tmp_path, 6, 144, {"step_before_ms": 120})
    assert against_baseline(no_hour).endswith(f"{pace} before older baselines 23 ms.")
    window(tmp_path, 7, 24, {"step_before_ms": 24}, every=every)
    back = window(tmp_path, 8, 24, {"step_before_ms": 23, "step_hour_ms": 24})
    assert ", as usual: the baseline of " in against_baseline(back)

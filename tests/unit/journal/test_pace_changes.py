"""Changes of the pace are found in replayed series, with a virtual clock; quiet ones are silent."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dynprof.journal.pace_changes import PaceChange, PaceChanges, duration, paces_ms
from tests.pace_series import BEGAN_S, DAY_S, Series, Stalls, quiet

BLOCK_STEPS, BLOCK_S = 30, 30.0
"""What a block has at least, one of the two; and one reading more."""


def found_in(series: Series) -> list[tuple[PaceChange, float]]:
    """Return the changes found in a series, each with the time at which it was found."""
    changes = PaceChanges()
    readings = ((at_s, changes.add(at_s, step)) for at_s, step in series.readings())
    return [(change, at_s) for at_s, change in readings if change]


def block_s(series: Series, factor: float) -> float:
    """Return the length of a block of the slower pace, at most."""
    step_s = series.step_s * max(1.0, factor)
    return min(BLOCK_STEPS * step_s, BLOCK_S + step_s) + 1.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quiet_days_have_at_most_one_change() -> None:
    """Jobs of a day: evaluations, checkpoints, recompilations, warm-up, SIGSTOP, jitter.

    These have all eight lengths of a step; ``make bench-faults`` replays thirty jobs.
    """
    found = [(seed, change) for seed in range(11, 25) for change, _ in found_in(quiet(seed))]
    assert len(found) <= 1, found


@pytest.mark.parametrize("factor", [1.2, 1.5, 3.0, 0.6])
@pytest.mark.parametrize("step_s", [0.005, 0.022, 0.3, 2.0, 12.0])
def test_change_is_found_with_its_time_and_step(step_s: float, factor: float) -> None:
    """Within three blocks of its onset; found within ten minutes or twenty blocks."""
    before_s = 5400.0
    stalls = (Stalls(int(1000 / step_s), 10, 30),)
    after_s = max(1200.0, 30 * (30 + step_s * factor))
    series = Series(
        5, step_s, before_s + after_s, 0.05, 0.01, stalls, changes=((before_s, factor),)
    )
    ((change, found_s),) = found_in(series)
    onset_s, step = series.onset()
    error_s = 3 * block_s(series, factor)
    assert change.at_s == pytest.approx(onset_s, abs=error_s)
    assert change.step == pytest.approx(step, abs=error_s / step_s / min(1.0, factor))
    assert change.before_ms == pytest.approx(step_s * 1e3, rel=0.05)
    assert change.after_ms == pytest.approx(step_s * factor * 1e3, rel=0.07)
    assert found_s - onset_s < max(600.0, 20 * block_s(series, factor))


@pytest.mark.parametrize("factor", [1.5, 3.0])
@pytest.mark.parametrize("step_s", [0.022, 0.7, 12.0])
def test_change_is_found_among_steps_that_vary(step_s: float, factor: float) -> None:
    """A standard deviation of 30%; within five blocks, found within half an hour."""
    series = Series(7, step_s, 5400.0 + 3000, 0.3, changes=((5400.0, factor),))
    ((change, found_s),) = found_in(series)
    onset_s, _ = series.onset()
    assert change.at_s == pytest.approx(onset_s, abs=5 * block_s(series, factor))
    assert found_s - onset_s < 1800


def test_small_change_among_long_steps_that_vary_is_found() -> None:
    """Steps of 12 s that vary by 30% become 1.2 times longer: found within two hours."""
    series = Series(7, 12.0, 28_800.0, 0.3, changes=((14_400.0, 1.2),))
    ((change, found_s),) = found_in(series)
    assert change.at_s == pytest.approx(BEGAN_S + 14_400, abs=1200)
    assert found_s - BEGAN_S - 14_400 < 7200


def test_change_soon_after_the_start_is_found() -> None:
    """The steps become longer after 13 s: found within a minute, with the exact step."""
    series = Series(1, 0.022, 120, 0.02, changes=((13.2, 3.2),))
    ((change, found_s),) = found_in(series)
    onset_s, step = series.onset()
    assert found_s - onset_s < 60
    assert change.step == pytest.approx(step, abs=3)


def test_changes_there_and_back_are_both_found() -> None:
    """Each is compared with the steps since the one before."""
    series = Series(2, 0.05, 4 * 3600, changes=((3600.0, 2.0), (7200.0, 0.5)))
    slower, faster = (change for change, _ in found_in(series))
    assert slower.is_slower
    assert not faster.is_slower
    assert faster.at_s == pytest.approx(BEGAN_S + 7200, abs=10)


def test_a_slower_pace_in_the_first_ten_minutes_is_taken_back() -> None:
    """A job that was slower for 100 s is not a job that warms up."""
    series = Series(1, 0.022, 900, 0.02, changes=((90.0, 3.2), (190.0, 1 / 3.2)))
    found = found_in(series)
    slower, faster = (change for change, _ in found)
    assert (slower.is_slower, faster.is_slower) == (True, False)
    assert faster.at_s == pytest.approx(BEGAN_S + 190, abs=5)
    assert faster.after_ms == pytest.approx(22, rel=0.05)
    assert found[1][1] - BEGAN_S < 300


@pytest.mark.parametrize("step_s", [0.022, 0.7, 12.0])
def test_slow_drift_is_found(step_s: float) -> None:
    """A job that becomes 1.5 times slower within a day: two changes or three, during the drift."""
    found = [change for change, _ in found_in(Series(6, step_s, DAY_S, 0.1, drift=1.5))]
    assert 2 <= len(found) <= 4
    assert all(change.is_slower and change.at_s < BEGAN_S + DAY_S for change in found)


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(Series(1, 0.022, 7200, stalls=(Stalls(200, 20, 20),)), id="evaluations"),
        pytest.param(Series(1, 0.022, 7200, pauses=((3600.0, 1800.0),)), id="SIGSTOP"),
        pytest.param(Series(1, 5.0, 7200, stalls=(Stalls(500, 600, 600),)), id="a slow step"),
        pytest.param(Series(1, 0.5, 7200, 0.3, warm_up=400), id="warm-up"),
        pytest.param(
            Series(1, 0.05, 7200, changes=((3600.0, 3.0), (3625.0, 1 / 3))), id="half a minute"
        ),
    ],
)
def test_disturbance_is_no_change(series: Series) -> None:
    """What passes is no change of the pace, however long a step it makes."""
    assert not found_in(series)


def test_steps_of_a_window_are_no_change() -> None:
    """A profiler slows the steps for ten minutes; a window is open during this time."""
    series = Series(3, 0.05, 7200, changes=((3600.0, 3.0), (4200.0, 1 / 3)))
    assert len(found_in(series)) == 2
    changes = PaceChanges()
    for at_s, step in series.readings():
        is_usual = not 3599 <= at_s - BEGAN_S <= 4201
        assert changes.add(at_s, step, counts=is_usual) is None


def test_other_step_number_is_no_change() -> None:
    """``set_state()`` and a restart renumber the steps; the pace is that of the steps alone."""
    readings = list(replace(Series(4, 0.05, 3600), jitter=0.02).readings())
    changes = PaceChanges()
    for at_s, step in readings:
        is_later = at_s - BEGAN_S > 1800
        number = step + (1_000_000 if is_later else 0)
        is_first = is_later and at_s - BEGAN_S < 1801.5
        assert changes.add(at_s, number, counts=not is_first) is None


def followed(former: Series, series: Series) -> list[tuple[PaceChange, float]]:
    """Return the changes found in a series whose rank ran another one before."""
    changes = PaceChanges()
    changes.follow(paces_ms((at_s, step, True) for at_s, step in former.readings()))
    readings = ((at_s, changes.add(at_s, step)) for at_s, step in series.readings())
    return [(change, at_s) for at_s, change in readings if change]


@pytest.mark.parametrize("factor", [2.6, 0.4])
def test_another_pace_after_a_restart_is_one_change(factor: float) -> None:
    """It is dated to the first step, and found within two and a half minutes."""
    ((change, found_s),) = followed(
        Series(1, 0.024, 120, 0.1), Series(2, 0.024 * factor, 3600, 0.1, warm_up=40)
    )
    assert change.at_s == pytest.approx(BEGAN_S, abs=5)
    assert change.step < 5 / 0.024 / factor
    assert change.before_ms == pytest.approx(24, rel=0.05)
    assert change.after_ms == pytest.approx(24 * factor, rel=0.05)
    assert found_s - BEGAN_S < 150


def test_a_small_change_at_a_restart_is_found_after_the_warm_up() -> None:
    """Ten minutes of warm-up and five minutes of blocks."""
    ((change, found_s),) = followed(Series(1, 0.1, 3600), Series(2, 0.125, 3600))
    assert change.at_s == pytest.approx(BEGAN_S, abs=5)
    assert 900 < found_s - BEGAN_S < 1000


@pytest.mark.parametrize(
    "series",
    [
        pytest.param(Series(2, 0.1, 7200, 0.2), id="the same pace"),
        pytest.param(Series(2, 0.1, 7200, 0.2, warm_up=300), id="a warm-up"),
        pytest.param(
            Series(2, 0.3, 7200, 0.1, changes=((50.0, 1 / 3),)), id="a slow minute at its start"
        ),
    ],
)
def test_a_restart_at_the_same_pace_is_no_change(series: Series) -> None:
    """Caches fill and torch.compile compiles at first."""
    assert not followed(Series(1, 0.1, 3600, 0.2), series)


def test_a_warm_up_that_was_taken_for_a_change_is_taken_back() -> None:
    """After five slow minutes the pace is that of before: two changes, there and back."""
    series = Series(2, 0.3, 7200, 0.1, changes=((300.0, 1 / 3),))
    slower, faster = (change for change, _ in followed(Series(1, 0.1, 3600, 0.2), series))
    assert (slower.is_slower, faster.is_slower) == (True, False)
    assert faster.at_s == pytest.approx(BEGAN_S + 300, abs=10)


def test_a_short_former_process_is_not_compared() -> None:
    """Nine blocks are too few."""
    assert not followed(Series(1, 0.024, 9), Series(2, 0.1, 3600))


def test_paces_of_readings_leave_out_what_does_not_count() -> None:
    """The steps of a window do not change them; less than a block has none."""
    slow = ((float(at), 10 * at, True) for at in range(100))
    fast = ((100.0 + at, 1000 + 100 * at, False) for at in range(1000))
    assert paces_ms(itertools.chain(slow, fast)) == pytest.approx([100] * 32)
    assert paces_ms([(0.0, 0, True), (1.0, 5, True)]) == []


def test_change_in_words_names_both_paces_and_the_step() -> None:
    """The log, the status and the history say it alike."""
    change = PaceChange(BEGAN_S, 1600, 22.04, 12_512.0)
    words = change.in_words(BEGAN_S + 60)
    assert words.startswith("22 ms a step until ")
    assert words.endswith(" (step 1,600), 12.5 s since")
    assert "-" not in words
    assert "-" in change.in_words(BEGAN_S + DAY_S)
    assert [duration(ms) for ms in (0.5, 999.0, 999.9, 120_000)] == [
        "0.5 ms", "999 ms", "1 s", "120 s",
    ]  # fmt: skip

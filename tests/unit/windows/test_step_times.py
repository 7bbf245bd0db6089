"""Step times come from a counter and a clock, sampled at intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.windows.cost_account import StepTimes

if TYPE_CHECKING:
    from tests.fake_job import Job


def test_the_longest_step_is_seen_from_outside() -> None:
    """There is none before the counter increases; setting the number does not count."""
    pace = StepTimes()
    pace.sample(10, 0)
    pace.renumber(500)
    pace.sample(70, 500)
    assert (pace.longest_s(71, 500), pace.still_s(71, 500)) == (None, 61)
    assert pace.longest_s(135, 501) == 125  # as in the step time, unsampled steps count
    pace.sample(135, 501)
    pace.sample(136, 600)
    assert pace.longest_s(137, 600) == 125


def test_pace_is_the_mean_of_the_samples() -> None:
    """Step times come from counter and clock; a counter that is set back restarts them."""
    pace = StepTimes()
    assert pace.mean_ms(0, 0) is None
    pace.sample(10, 100)
    assert pace.mean_ms(11, 100) is None
    pace.sample(11, 150)
    assert pace.mean_ms(12, 200) == pytest.approx(20)
    pace.sample(12, 5)
    assert pace.mean_ms(13, 15) == pytest.approx(100)


def test_time_before_the_first_step_does_not_count() -> None:
    """Imports, data and compilation stop to count when the counter increases."""
    pace = StepTimes()
    for now_s in range(60):
        pace.sample(now_s, 0)
    pace.sample(60, 100)
    assert pace.mean_ms(61, 200) == pytest.approx(10)


def test_a_pace_that_is_known_stays_known() -> None:
    """The status is written with each sample; it must not lose the value in the second one."""
    pace = StepTimes()
    pace.sample(0, 0)
    assert pace.mean_ms(0.1, 4) == pytest.approx(25)
    pace.sample(1, 40)
    assert pace.mean_ms(1, 40) == pytest.approx(25)
    assert pace.mean_ms(1.1, 50) == pytest.approx(10)


def test_renumbered_steps_are_not_averaged(job: Job) -> None:
    """A resumed job's step number does not affect its speed."""
    job.session._tick()
    job.step(100)
    job.session.set_step(1_200_000)
    assert job.session.status().step_ms is None
    job.session._tick()
    job.step(10)
    assert job.session.status().step_ms == pytest.approx(10)


def test_the_newest_samples_outlast_a_window() -> None:
    """Samples end where the counter is set, because it changes the numbers of steps."""
    pace = StepTimes()
    for second in range(20):
        pace.sample(second, 10 * second)
    pace.reset()
    assert pace.recent() == [(second, 10 * second) for second in range(4, 20)]
    pace.renumber(7)
    assert pace.recent() == []


def running(seconds: int, steps_a_second: int) -> StepTimes:
    """Return the samples of a job that runs without a gap."""
    pace = StepTimes()
    for second in range(seconds + 1):
        pace.sample(second, steps_a_second * second)
    return pace


def test_a_gap_in_which_the_job_trained_is_no_long_step() -> None:
    """The sampling thread waited 40 s for a disk; the steps took their usual time."""
    pace = running(20, 40)
    pace.sample(60, 40 * 60)
    assert pace.stood_s == pytest.approx(0.025)
    assert pace.longest_s(61, 40 * 61) == pytest.approx(1)


def test_a_long_step_in_a_gap_is_known_without_the_other_steps() -> None:
    """A call held the GIL for 40 s; 40 steps had ended before, since the last sample."""
    pace = running(20, 40)
    pace.sample(61, 40 * 21 + 1)
    assert pace.stood_s == pytest.approx(40)
    assert pace.longest_s(62, 40 * 22) == pytest.approx(40)

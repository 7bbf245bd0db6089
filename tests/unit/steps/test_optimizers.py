"""Which optimizer's steps are counted, whatever else steps; torch tells of them by one call."""

from __future__ import annotations

import random

import pytest

from dynprof.steps.iteration_ends import MOST_FIRES
from dynprof.steps.optimizers import OptimizerSteps
from dynprof.wall import StderrNotes, Wall


class Adam:
    """An optimizer, as far as it is looked at."""


class Counted:
    """Counts the steps that are ended."""

    def __init__(self) -> None:
        self.count = 0

    def end_step(self) -> None:
        """End one."""
        self.count += 1


class Watched:
    """A source with what it counts and says."""

    def __init__(self) -> None:
        self.steps, self.said = Counted(), list[str]()
        self.source = OptimizerSteps(self.steps, self.said.append, Wall(StderrNotes()))  # type: ignore[arg-type]

    def step(self, *optimizers: Adam) -> None:
        """Let them step, one after the other."""
        for optimizer in optimizers:
            self.source._heard(optimizer)


def test_the_first_step_of_an_only_optimizer_is_counted() -> None:
    """So the numbers are the script's own."""
    watched, only = Watched(), Adam()
    for number in range(300):
        watched.step(only)
        assert watched.steps.count == number + 1
    assert watched.said == ["the optimizer Adam"]


@pytest.mark.parametrize("often", [0.05, 0.1, 0.3, 0.5, 0.7, 0.95])
def test_a_second_one_that_steps_at_random(often: float) -> None:
    """What looks like a cycle for a moment is looked at again: the iterations are counted."""
    for seed in range(20):
        chance = random.Random(seed)  # noqa: S311
        watched, main, other = Watched(), Adam(), Adam()
        for _ in range(6 * MOST_FIRES):
            watched.step(main, *([other] if chance.random() < often else []))
        before = watched.steps.count
        for _ in range(100):
            watched.step(main, *([other] if chance.random() < often else []))
        assert watched.steps.count - before == 100, (often, seed, watched.said)


@pytest.mark.parametrize("cycle", ["ddddg", "dg", "ddgg", "abc"])
def test_an_iteration_that_leaves_one_out(cycle: str) -> None:
    """A script that skips a step now and then is looked at anew, and counted as before."""
    watched, chance = Watched(), random.Random(cycle)  # noqa: S311
    optimizers = {name: Adam() for name in cycle}
    for number in range(1000):
        skipped = chance.randrange(len(cycle)) if number % 250 == 249 else None
        watched.step(*[optimizers[name] for at, name in enumerate(cycle) if at != skipped])
    before = watched.steps.count
    for _ in range(100):
        watched.step(*[optimizers[name] for name in cycle])
    least = min(cycle.count(name) for name in cycle)
    assert watched.steps.count - before == 100 * least
    assert len(watched.said) < 4


def test_one_that_is_made_anew_goes_on() -> None:
    """As for each phase of a training: no step is lost while it is watched."""
    watched = Watched()
    for _ in range(60):
        fresh = Adam()
        for _ in range(5):
            watched.step(fresh)
        del fresh
    assert watched.steps.count == 300


@pytest.mark.parametrize("parameters", [20, 60, 80, 150, 300])
def test_each_parameter_has_its_own(parameters: int) -> None:
    """As where they step amid the backward pass: each iteration is counted, and once."""
    watched, optimizers = Watched(), [Adam() for _ in range(parameters)]
    for number in range(30):
        watched.step(*optimizers)
        assert watched.steps.count == number + 1
    assert len(watched.said) == 2

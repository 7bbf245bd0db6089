"""Which optimizer's steps count, with other optimizers; torch reports them all by one call."""

from __future__ import annotations

import pytest

from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.steps.sources import OptimizerSteps


class Adam:
    """The part of an optimizer that the source uses."""


class Counted:
    """Counts the ended steps."""

    def __init__(self) -> None:
        self.count = 0

    def end_step(self) -> None:
        """End a step."""
        self.count += 1


class Watched:
    """A source with its steps and its messages."""

    def __init__(self) -> None:
        self.steps, self.said = Counted(), list[str]()
        self.source = OptimizerSteps(self.steps, self.say, ErrorBoundary(StderrNotes()))  # type: ignore[arg-type]

    def say(self, name: str, advice: str = "") -> None:
        """Keep a message."""
        self.said.append(name + advice)

    def step(self, *optimizers: Adam) -> None:
        """Let optimizers step, one after the other."""
        for optimizer in optimizers:
            self.source._on_step(optimizer)


def test_the_first_step_of_an_only_optimizer_is_counted() -> None:
    """The numbers are then the script's own."""
    watched, only = Watched(), Adam()
    for number in range(300):
        watched.step(only)
        assert watched.steps.count == number + 1
    assert watched.said == ["the optimizer Adam"]


def test_the_first_of_several_optimizers_counts_and_the_log_names_the_setting() -> None:
    """A GAN's critic steps more often than its generator; per-parameter optimizers step in turn."""
    watched, critic, generator = Watched(), Adam(), Adam()
    for _ in range(30):
        watched.step(critic, critic, generator)
    assert watched.steps.count == 60
    first, several = watched.said
    assert first == "the optimizer Adam"
    assert several.startswith("the optimizer Adam, the first of several; ")
    assert f'steps="{Adam.__module__}:Adam.step" selects another one' in several


def test_a_new_optimizer_continues_the_steps() -> None:
    """This happens at each phase of a training: no step is lost."""
    watched = Watched()
    for _ in range(60):
        fresh = Adam()
        for _ in range(5):
            watched.step(fresh)
        del fresh
    assert watched.steps.count == 300


@pytest.mark.parametrize("parameters", [20, 300])
def test_optimizers_of_single_parameters_count_once(parameters: int) -> None:
    """Such optimizers may step during the backward pass: each iteration counts once."""
    watched, optimizers = Watched(), [Adam() for _ in range(parameters)]
    for number in range(30):
        watched.step(*optimizers)
        assert watched.steps.count == number + 1
    assert len(watched.said) == 2

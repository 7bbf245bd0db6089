"""The valid sources of steps, by argument or by variable."""

from __future__ import annotations

import pytest

from dynprof.steps.base import VARIABLE, StepOption, step_option_of

SCRIPT = StepOption("script")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("script", StepOption("script")),
        ("optimizer", StepOption("optimizer")),
        ("auto", StepOption("auto")),
        ("train:step", StepOption("function", "train", "step")),
        ("a.b:Trainer.step", StepOption("function", "a.b", "Trainer.step")),
        (":main", StepOption("function", "", "main")),
        (5, StepOption("period", seconds=5.0)),
        (0.5, StepOption("period", seconds=0.5)),
        ("5s", StepOption("period", seconds=5.0)),
        (" 2.5 s", StepOption("period", seconds=2.5)),
    ],
)
def test_valid_step_sources(
    asked: object, found: StepOption, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The argument accepts them, and the variable does for those that are text."""
    assert step_option_of(asked, otherwise=SCRIPT) == found
    monkeypatch.setenv(VARIABLE, str(asked))
    assert step_option_of(None, otherwise=SCRIPT) == found


def test_the_argument_takes_precedence_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable does not count."""
    monkeypatch.setenv(VARIABLE, "optimizer")
    assert step_option_of("script", otherwise=StepOption("auto")) == SCRIPT
    monkeypatch.setenv(VARIABLE, "")
    assert step_option_of(None, otherwise=SCRIPT) == SCRIPT


@pytest.mark.parametrize(
    "asked", ["optimiser", "train.step", "a:b c", ":", "a:", True, -1, 0, float("nan"), [], "1e9"]
)
def test_an_invalid_step_source_is_refused(asked: object) -> None:
    """The error names the value and the valid ones."""
    with pytest.raises(ValueError, match=r"steps=.*write") as caught:
        step_option_of(asked, otherwise=SCRIPT)
    assert repr(asked) in str(caught.value) or str(asked) in str(caught.value)

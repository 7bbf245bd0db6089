"""What may be asked for as the source of steps, by argument or by variable."""

from __future__ import annotations

import pytest

from dynprof.steps.wish import VARIABLE, Wish, wished

SCRIPT = Wish("script")


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("script", Wish("script")),
        ("optimizer", Wish("optimizer")),
        ("auto", Wish("auto")),
        ("train:step", Wish("function", "train", "step")),
        ("a.b:Trainer.step", Wish("function", "a.b", "Trainer.step")),
        (":main", Wish("function", "", "main")),
        (5, Wish("period", seconds=5.0)),
        (0.5, Wish("period", seconds=0.5)),
        ("5s", Wish("period", seconds=5.0)),
        (" 2.5 s", Wish("period", seconds=2.5)),
    ],
)
def test_what_can_be_asked_for(asked: object, found: Wish, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an argument; what is text by the variable too."""
    assert wished(asked, otherwise=SCRIPT) == found
    monkeypatch.setenv(VARIABLE, str(asked))
    assert wished(None, otherwise=SCRIPT) == found


def test_the_argument_counts_more_than_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an empty variable is none."""
    monkeypatch.setenv(VARIABLE, "optimizer")
    assert wished("script", otherwise=Wish("auto")) == SCRIPT
    monkeypatch.setenv(VARIABLE, "")
    assert wished(None, otherwise=SCRIPT) == SCRIPT


@pytest.mark.parametrize(
    "asked", ["optimiser", "train.step", "a:b c", ":", "a:", True, -1, 0, float("nan"), [], "1e9"]
)
def test_what_is_none_is_refused(asked: object) -> None:
    """In a sentence that names what was given and what can be."""
    with pytest.raises(ValueError, match=r"steps=.*write") as caught:
        wished(asked, otherwise=SCRIPT)
    assert repr(asked) in str(caught.value) or str(asked) in str(caught.value)

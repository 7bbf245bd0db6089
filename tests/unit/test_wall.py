"""The wall between dynprof and the training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof import wall
from dynprof.wall import StderrNotes, Wall

if TYPE_CHECKING:
    import pytest


def test_no_memory_to_look_at_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays behind the wall, and whoever asked knows that the action failed."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(wall, "came_from_a_signal", fail)
    assert isinstance(Wall(StderrNotes()).attempt("saving", fail), MemoryError)


def test_no_memory_to_say_what_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same, and the next failure of the kind is said."""

    def fail(*_: object) -> None:
        raise MemoryError

    behind = Wall(StderrNotes())
    with monkeypatch.context() as without_memory:
        without_memory.setattr(wall, "say", fail)
        assert isinstance(behind.attempt("saving", fail), MemoryError)
    assert isinstance(behind.attempt("saving", fail), MemoryError)
    assert "saving failed: MemoryError" in capsys.readouterr().err

"""A training in a framework watches its directory."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

import dynprof as dp
from dynprof.integrations.training import Training

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    yield
    dp.shutdown()


def test_another_directory_gives_a_warning(tmp_path: Path) -> None:
    """If another directory is watched already, a warning names both, and the training continues."""
    Training("Some", tmp_path / "one", {}).watch(0)
    with pytest.warns(UserWarning, match="one is watched since the first call"):
        Training("Some", tmp_path / "two", {}).watch(0)
    assert not (tmp_path / "two").exists()


def test_the_next_training_in_the_same_directory_gives_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The spelling of the directory does not matter."""
    monkeypatch.chdir(tmp_path)
    training = Training("Some", "one", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training.watch(0)
        training.watch(0)
        Training("Some", tmp_path / "one", {}).watch(0)

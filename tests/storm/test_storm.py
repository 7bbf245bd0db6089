"""A short storm with each malloc, in each way of closing; ``make storm`` lets them rage an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from tests.storm.storm import MOST_S, storm

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(2 * MOST_S)
@pytest.mark.parametrize("seed", [2, 3])
def test_nothing_of_it_hurts_the_training(tmp_path: Path, seed: int) -> None:
    """The job ends well, its weights are those of a calm training, and nothing is left at rest."""
    if wrong := storm(seed, 8.0, tmp_path):
        pytest.fail(wrong)  # whole: where its threads stand is at the end

"""A short storm of each kind; ``make storm`` lets them rage for an hour."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is not installed")
if not os.environ.get("DYNPROF_STORM"):
    pytest.skip("make storm runs it, and DYNPROF_STORM=1", allow_module_level=True)

from tests.storm.storm import storm

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_nothing_of_it_hurts_the_training(tmp_path: Path, seed: int) -> None:
    """The job ends well, its weights are those of a calm training, and nothing is left at rest."""
    assert storm(seed, 10.0, tmp_path) == ""

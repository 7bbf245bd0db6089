"""The job for tests of operators' commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.running import LOOP, RunningJob

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """Return a running job of one rank."""
    with RunningJob(tmp_path, LOOP) as running:
        running.when("training", lambda status: status.state == "idle")
        yield running

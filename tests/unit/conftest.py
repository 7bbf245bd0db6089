"""Fixtures of jobs that only the test drives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.windows.driver import UNENDED
from tests.fake_job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_unended() -> Iterator[None]:
    """Leave no recording to the next test."""
    yield
    UNENDED.abandon()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Return a job that saves captures at once."""
    return Job(tmp_path)


@pytest.fixture
def slow_job(tmp_path: Path) -> Iterator[Job]:
    """Return a job whose captures are saved when the test says so."""
    job = Job(tmp_path, hold=True)
    yield job
    job.saving.finish()

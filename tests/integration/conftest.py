"""Fixtures of tests that profile in their own process."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.backends.torch.open_annotations import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.buckets import Bucket


@pytest.fixture(autouse=True)
def _no_unfinished_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without unfinished operators of other tests' recordings."""
    monkeypatch.setattr(UNFINISHED, "_threads", set())


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, without coverage and debuggers."""
    monkeypatch.chdir(tmp_path)
    tracer = sys.getprofile()
    sys.setprofile(None)
    yield
    sys.setprofile(tracer)


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """Return a bucket whose server is not running yet."""
    from tests.integration.buckets import Bucket  # boto3 may be missing

    made = Bucket(tmp_path)
    yield made
    made.close()

"""Fixtures for tests of captures that are sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.captures.buckets import Bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """Return a bucket whose server is not running yet."""
    from tests.integration.captures.buckets import Bucket  # boto3 may be missing

    made = Bucket(tmp_path)
    yield made
    made.close()

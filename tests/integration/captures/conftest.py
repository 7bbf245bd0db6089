"""What the tests of captures on their way share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.captures.buckets import Bucket


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    """Return one whose server is not running yet."""
    from tests.integration.captures.buckets import Bucket  # there may be no boto3

    made = Bucket(tmp_path)
    yield made
    made.close()

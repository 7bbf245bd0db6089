"""Settings of tests that analyse traces in their own process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True, scope="module")
def _no_other_processes() -> Iterator[None]:
    """Analyse several traces in this process, unless a test or command requests more processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "cpu_count", lambda: 1)
        yield

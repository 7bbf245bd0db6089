"""Settings of all tests."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

settings.register_profile("dynprof", deadline=None)  # the first example may import torch
settings.load_profile("dynprof")


def pytest_configure(config: pytest.Config) -> None:
    """Keep the self-test's cache of this run away from that of the user."""
    cache = tempfile.TemporaryDirectory(prefix="dynprof-cache-")
    os.environ["XDG_CACHE_HOME"] = cache.name
    config.add_cleanup(cache.cleanup)

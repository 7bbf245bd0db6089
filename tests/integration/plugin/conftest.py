"""A fixture that installs the plugin for each test here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _installed() -> Iterator[None]:
    import dynprof.plugin  # not at the top: the import wraps functions

    dynprof.plugin.install()
    yield
    dynprof.plugin.uninstall()

"""What tests that profile in their own process share."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.backends.selftest import SELF_TEST
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session", autouse=True)
def _self_test_has_ended() -> None:
    """Have it answered before the first test, with whose end it would be killed."""
    if importlib.util.find_spec("torch"):
        SELF_TEST.begin()
        wait_for("the self-test", lambda: SELF_TEST.answer)


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, with coverage and debuggers out of the way."""
    monkeypatch.chdir(tmp_path)
    tracer = sys.getprofile()
    sys.setprofile(None)
    yield
    sys.setprofile(tracer)

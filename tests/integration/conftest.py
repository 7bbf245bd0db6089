"""What tests that profile in their own process share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from dynprof.backends.torch.open_annotations import UNFINISHED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_unfinished_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin without the operators that recordings of other tests may have left unfinished."""
    monkeypatch.setattr(UNFINISHED, "_threads", set())


@pytest.fixture
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, with coverage and debuggers out of the way."""
    monkeypatch.chdir(tmp_path)
    tracer = sys.getprofile()
    sys.setprofile(None)
    yield
    sys.setprofile(tracer)

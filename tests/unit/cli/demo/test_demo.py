"""The output of ``dynprof demo`` before the job begins."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from dynprof.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_demo_without_torch_names_the_alternative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has one line, and comes before a job that would only fail."""
    monkeypatch.setitem(sys.modules, "torch", None)
    done = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path / "demo")])
    assert (done.exit_code, done.output) == (
        1,
        "torch is not installed; use dynprof demo --backend python, or pip install torch\n",
    )
    assert not (tmp_path / "demo").exists()

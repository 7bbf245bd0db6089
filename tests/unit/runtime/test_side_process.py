"""Processes that dynprof starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.runtime import side_process
from dynprof.runtime.side_process import SideProcess

if TYPE_CHECKING:
    import pytest


def begun(monkeypatch: pytest.MonkeyPatch, code: str) -> SideProcess:
    """Return a process that runs some code."""
    import sys

    monkeypatch.setattr(side_process, "command", lambda *_: [sys.executable, "-c", code])
    return SideProcess.begin("any")


def test_a_hanging_process_is_killed_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process's last line says so."""
    sleeping = begun(monkeypatch, "import time; time.sleep(1000)")
    assert sleeping.last_line(wait=True, most_s=0.05) == "it did not end within 0.05 s"


def test_a_long_last_line_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line with a long path, for example."""
    path = "/x" * 4000
    assert begun(monkeypatch, f"import sys; sys.exit({path!r})").last_line(wait=True) == path

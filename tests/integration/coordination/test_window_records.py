"""``info/window.json`` says of each window what became of it on every rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynprof.captures.window_record import load_window_record
from tests.integration.commands import dynprof
from tests.integration.coordination.agreeing import APART, job

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path


def test_windows_that_follow_each_other_at_once(tmp_path: Path) -> None:
    """An edit does not keep the leader from hearing what became of the one before."""
    root = tmp_path / "desk_0"
    with job(tmp_path, 2, APART):
        for steps in (30, 29, 28):
            dynprof("arm", root, "--active", steps)
        code, _, errors = dynprof("arm", root, "--active", 2, "--wait")
        assert code == 0, errors
    records = [load_window_record(path) for path in root.rglob("window.json")]
    assert records
    for record in records:
        assert record.complete, record
        assert all(one.capture for one in record.ranks.values())

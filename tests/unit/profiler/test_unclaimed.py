"""Traces that nobody asked for wait to be saved, not for ever and not without end."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynprof.profiler import unclaimed
from tests.pace import patience_s

if TYPE_CHECKING:
    import pytest


class _Window:
    """One that can be saved beside the training."""

    class recording:  # noqa: N801
        saves_beside = True


def test_a_disk_that_hangs_does_not_collect_windows(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The newest ten wait, older ones give way, and that is said."""
    saver, saved, disk = unclaimed._Saver(), [], threading.Event()

    def save(held: unclaimed._Held) -> None:
        disk.wait(patience_s())
        saved.append(held)

    monkeypatch.setattr(saver, "_save", save)
    saver.start()
    all_held = [
        unclaimed._Held(cast("Any", _Window()), Path(str(number)), os.getpid())
        for number in range(20)
    ]
    for held in all_held:
        saver.put(held)
    disk.set()
    saver.finish()
    assert saved[-10:] == all_held[-10:]
    assert len(saved) <= 11  # one may have been taken at once
    assert "came faster than they could be saved" in capfd.readouterr().err

"""Traces that nobody asked for wait to be saved, not for ever and not without end."""

from __future__ import annotations

import os
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dynprof.profiler import unclaimed
from tests.pace import patience_s

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        unclaimed._Held(cast("Any", _Window()), Path(str(number)), Path(), os.getpid(), "")
        for number in range(20)
    ]
    for held in all_held:
        saver.put(held)
    disk.set()
    saver.finish()
    assert saved[-10:] == all_held[-10:]
    assert len(saved) <= 11  # one may have been taken at once
    assert "came faster than they could be saved" in capfd.readouterr().err


class _Growing(weakref.WeakSet[unclaimed.Unclaimed]):
    """What another thread adds one to, when it is first gone through."""

    added: unclaimed.Unclaimed | None = None

    def __iter__(self) -> Iterator[unclaimed.Unclaimed]:
        for each in super().__iter__():
            if not self.added:
                self.added = unclaimed.Unclaimed(_Window())
                self.add(self.added)
            yield each


def test_a_profile_that_ends_while_the_process_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another thread, which goes on till the last; what others left is saved all the same."""
    left, saver = unclaimed.Unclaimed(_Window()), unclaimed._Saver()
    left._held.append(unclaimed._Held(cast("Any", _Window()), Path(), Path(), os.getpid(), ""))
    saved = list[unclaimed._Held]()
    monkeypatch.setattr(saver, "_save", saved.append)
    monkeypatch.setattr(unclaimed, "_SAVER", saver)
    monkeypatch.setattr(unclaimed, "_known", _Growing([left]))
    unclaimed._end_all()
    assert len(saved) == 1

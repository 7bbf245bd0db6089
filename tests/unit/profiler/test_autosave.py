"""Traces that no script requested: submitted from anywhere, and waited for with a timeout."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, cast

import pytest

from dynprof.profiler import autosave, saving
from tests.pace import patience_s

if TYPE_CHECKING:
    from dynprof.captures.exporter import Exporter


class _Window:
    """A window that can be saved while the training continues."""

    class recording:  # noqa: N801
        saves_concurrently = True


class _Profile:
    """A profile that can be freed."""


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    """Return a new exporter of a script's traces, whose thread runs."""
    monkeypatch.setattr(autosave, "_autosaves", autosave._Autosaves())
    monkeypatch.setattr(saving, "_exporter", saving._new_exporter())
    return saving.exporter()


def thrown_away(number: int = 1) -> None:
    """Free profiles whose window was not requested."""
    for _ in range(number):
        profile = _Profile()
        kept = autosave.Autosave(profile)
        kept.keep(cast("Any", _Window()))


def test_a_profile_ends_inside_any_lock_of_the_exporter(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile's end takes no lock, because a garbage collection may occur inside any."""
    saved = threading.Event()
    monkeypatch.setattr(autosave, "_save", lambda _: saved.set())
    with exporter._publishing:
        thrown_away()
    assert saved.wait(patience_s())


def test_a_saved_window_is_freed(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved window is freed while its profile still exists."""
    monkeypatch.setattr(autosave, "_save", lambda _: None)
    profile, window = _Profile(), _Window()
    kept = autosave.Autosave(profile)
    kept.keep(cast("Any", window))
    left = weakref.ref(window)
    del window
    kept.submit()
    assert exporter.wait(patience_s())
    assert left() is None


def test_the_end_names_how_many_wait_behind_a_save_that_hangs(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """If a disk hangs, the process ends at the timeout and names the loss once."""
    disk, hanging, saved = threading.Event(), threading.Event(), list[object]()

    def save(kept: object) -> None:
        hanging.set()
        disk.wait()
        saved.append(kept)

    monkeypatch.setattr(autosave, "_save", save)
    monkeypatch.setattr(saving, "AUTOSAVE_WAIT_S", 0.01)
    thrown_away(3)
    assert hanging.wait(patience_s())
    autosave._autosaves.end()
    disk.set()
    exporter._thread.join(patience_s())
    text = "saving was given up because the process ended; also lost: 2 traces of profiles"
    assert capfd.readouterr().err == f"dynprof: {text}\n"
    assert len(saved) == 1


def test_the_end_waits_longer_for_a_trace_of_a_handler(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a submitted trace is being saved, the timeout is that of handlers."""
    waits = list[float]()

    def wait(_: Exporter, limit_s: float) -> bool:
        waits.append(limit_s)
        return True

    monkeypatch.setattr(type(exporter), "wait", wait)
    saving.wait_at_end()
    monkeypatch.setattr(exporter, "_submitted", [object()])
    saving.wait_at_end()
    assert waits == [saving.AUTOSAVE_WAIT_S, saving.HANDLERS_WAIT_S]

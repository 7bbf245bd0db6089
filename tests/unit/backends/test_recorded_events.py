"""How many events a window is told to have, from what the allocator has given out."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import TYPE_CHECKING

from dynprof.backends import recorded_events
from dynprof.backends.base import Load
from dynprof.backends.recorded_events import RecordedEvents

if TYPE_CHECKING:
    import pytest


def test_what_is_allocated_as_recording_begins_is_not_told_as_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step has 1,000 calls; during the first, 10 MB more stay allocated, as 400,000 calls do."""
    in_use_mb = 100.0
    monkeypatch.setattr(recorded_events, "_blocks", lambda: ctypes.c_uint64(7))
    monkeypatch.setattr(recorded_events, "in_use_mb", lambda: in_use_mb)
    monkeypatch.setattr(recorded_events, "_CALLS_A_SECOND", 1e12)
    profiler = SimpleNamespace(record_shapes=False, profile_memory=False, with_stack=True)
    recorded = RecordedEvents(profiler)
    assert recorded.load(inside_step=False) == Load(0, 0.0)  # as the window begins
    in_use_mb += 10.0
    told = []
    for _ in range(10):
        in_use_mb += 1_000 * 24.6e-6
        load = recorded.load(inside_step=False)
        assert load is not None
        told.append(load.events)
        assert load.saving_mb > 500
    assert told[0] > 300_000
    assert told[1:] == [1_000 * (steps + 2) for steps in range(1, 10)]

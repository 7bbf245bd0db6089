"""The estimated number of a window's events, from the allocator's growth."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest

from dynprof.backends.base import Load
from dynprof.backends.torch import torch_recording
from dynprof.backends.torch.torch_recording import RecordedEvents


def test_allocator_growth_counts_as_calls_at_the_end_of_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call takes 24.6 bytes; growth inside a step may be tensors, and does not count."""
    in_use_mb = 100.0
    monkeypatch.setattr(torch_recording, "_blocks", lambda: ctypes.c_uint64(7))
    monkeypatch.setattr(torch_recording, "in_use_mb", lambda: in_use_mb)
    monkeypatch.setattr(torch_recording, "_CALLS_A_SECOND", 1e12)
    profiler = SimpleNamespace(record_shapes=False, profile_memory=False, with_stack=True)
    recorded = RecordedEvents(profiler)
    in_use_mb += 0.25 + 10_000 * 24.6e-6
    assert recorded.load(inside_step=True) == Load(0, 0.0)
    load = recorded.load(inside_step=False)
    assert load is not None
    assert load.events == pytest.approx(10_000, abs=1)
    assert load.saving_mb == pytest.approx(10_000 * 1_480e-6, rel=1e-3)

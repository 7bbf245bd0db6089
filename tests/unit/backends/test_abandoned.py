"""Recordings that are abandoned because their thread cannot end them."""

from __future__ import annotations

import os

import pytest

from dynprof.backends.npu import NpuRecording


@pytest.mark.parametrize("is_child", [False, True])
def test_a_forked_child_leaves_the_vendors_profiler_to_its_parent(
    monkeypatch: pytest.MonkeyPatch, *, is_child: bool
) -> None:
    """A child, such as a loader worker, has no NPU. In the same process any thread ends it."""
    calls: list[str] = []
    recording = NpuRecording.__new__(NpuRecording)
    recording._pid = os.getpid() + is_child
    monkeypatch.setattr(NpuRecording, "discard", lambda _: calls.append("discard"))
    recording.abandon()
    assert calls == ([] if is_child else ["discard"])

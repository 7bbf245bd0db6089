"""A process that uses no device keeps its forks and its memory, whatever a machine has.

An H100 has shown what these tests hold: after ``supported_activities()`` no forked child could use
CUDA, and a profiler of CUDA took 530 MiB for a process that had never used it. Here is none, so
what torch says of devices is replaced.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dynprof.backends.base import discard
from dynprof.backends.closing import choose_close, ended_on
from dynprof.backends.devices import device_activities, used
from dynprof.backends.torch import TorchBackend
from tests.integration.backends.plans import RANK, a_plan

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

BOTH = ("CPU", "CUDA")


def test_nobody_starts_a_driver_to_ask_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the two questions that do is asked; how many there are says NVML."""

    def start() -> None:
        pytest.fail("this starts the driver")

    monkeypatch.setattr(torch.profiler, "supported_activities", start)
    monkeypatch.setattr(torch.autograd, "_supported_activities", start, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", start)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_activities(torch) == BOTH
    assert TorchBackend(detaches=False).capabilities().activities == BOTH


@pytest.mark.parametrize(("begun", "watched"), [(False, ("CPU",)), (True, BOTH)])
def test_a_device_that_the_process_has_not_begun_to_use_is_left_out(
    monkeypatch: pytest.MonkeyPatch, begun: bool, watched: tuple[str, ...]
) -> None:
    """Where nothing else was asked for the host is recorded."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    assert used(torch, BOTH) == watched
    assert used(torch, ("CUDA",)) == watched[-1:]


def test_the_manifest_names_what_was_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As something that is missing; the window is recorded without it."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    backend = TorchBackend(detaches=False)
    plan = replace(a_plan(backend), activities=BOTH)
    recording = backend.prepare(plan, RANK, lambda: tmp_path)
    assert not recording._profiler.use_device
    assert recording.companions.save(tmp_path / "rank_0") == (
        "CUDA was not recorded: this process had not used it yet",
    )
    discard(recording)


class Library:
    """Stands for CUPTI."""

    def __init__(self, did: list[object]) -> None:
        self._did = did

    def cuptiActivityDisable(self, kind: int) -> None:  # noqa: N802 - as CUPTI has it
        self._did.append(kind)


def test_the_recording_of_a_device_ends_with_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once its last kernel has: later steps run while events are collected, and are not kept."""
    did: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: did.append("waited"))
    monkeypatch.setattr("dynprof.backends.cupti.loaded", lambda: Library(did))
    assert "waiting for the device" in ended_on("cuda")
    concurrent_kernels, runtime_calls = 10, 5
    assert did[0] == "waited"
    assert {concurrent_kernels, runtime_calls} < set(did)
    assert ended_on(None) == ""


def test_a_device_whose_recording_cannot_be_ended_is_closed_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though it was asked otherwise: without CUPTI its recording goes on beside later steps."""
    monkeypatch.setenv("DYNPROF_CLOSE", "detached")
    functions, how = choose_close(BOTH)
    assert functions is None
    assert "beyond the window" in how

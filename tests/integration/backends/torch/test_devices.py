"""A process that uses no device keeps its forks and its memory, whatever devices exist.

An H100 showed the need. After ``supported_activities()`` no forked child could use CUDA. A profiler
of CUDA took 530 MiB in a process that had never used it. This machine has no device, so the tests
replace torch's answers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dynprof.backends.base import discard
from dynprof.backends.torch import closing
from dynprof.backends.torch.backend import TorchBackend
from dynprof.backends.torch.closing import choose_close, synchronize_device
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.backends.torch.features import device_activities, used_activities
from dynprof.captures.analysis_start import arguments_for
from tests.integration.backends.plans import RANK, a_plan, no_folder
from tests.integration.scripts import manifests, run

torch = pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

BOTH = ("CPU", "CUDA")


def test_asking_for_devices_starts_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of the two calls that start the driver is used; NVML counts the devices."""

    def start() -> None:
        pytest.fail("this starts the driver")

    monkeypatch.setattr(torch.profiler, "supported_activities", start)
    monkeypatch.setattr(torch.autograd, "_supported_activities", start, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", start)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert device_activities(torch) == BOTH
    assert TorchBackend(detaches=False).capabilities().activities == BOTH


def test_a_device_that_kineto_was_not_built_for_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch is asked only after the process uses the device, so its driver runs already."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.profiler, "supported_activities", set)
    assert device_activities(torch) == ("CPU",)


@pytest.mark.parametrize(("begun", "watched"), [(False, ("CPU",)), (True, BOTH)])
def test_a_device_that_the_process_has_not_begun_to_use_is_left_out(
    monkeypatch: pytest.MonkeyPatch, begun: bool, watched: tuple[str, ...]
) -> None:
    """If no other activity was requested, the host is recorded."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: begun)
    assert used_activities(torch, BOTH) == watched
    assert used_activities(torch, ("CUDA",)) == watched[-1:]


def test_manifest_names_a_device_that_was_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest lists the device as missing; the window is recorded without it."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    backend = TorchBackend(detaches=False)
    plan = replace(a_plan(backend), activities=BOTH)
    recording = backend.prepare(plan, RANK, no_folder)
    assert not recording._profiler.use_device
    assert recording.without == ("CUDA",)
    assert recording.collectors.save(tmp_path / "rank_0") == (
        "CUDA was not recorded: this process had not used it yet",
    )
    discard(recording)


def test_the_window_waits_for_the_self_test_if_a_device_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a used device, only the host's close matters, and the window does not wait."""
    monkeypatch.setattr(SELF_TEST, "answer", None)
    monkeypatch.setattr(SELF_TEST, "running_s", lambda: 1.0)
    monkeypatch.delenv("DYNPROF_CLOSE", raising=False)
    for begun in (False, True):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda begun=begun: begun)
        plan = replace(a_plan(TorchBackend()), activities=BOTH)
        blocked = TorchBackend().blocked_by(plan, elsewhere=True)
        assert [one.effect for one in blocked] == ([] if begun else ["prefer wait"])


def test_manifest_does_not_list_an_unused_device_as_recorded(tmp_path: Path) -> None:
    """The manifest's activities omit it, and the memory timeline is drawn as without a device."""
    script = """
    torch.cuda.device_count = lambda: 1
    window(active=2, memory_snapshot=True, activities=["CPU", "CUDA"])
    steps(4)
    idle()
    """
    run(tmp_path, script)
    (manifest,) = manifests(tmp_path)
    assert manifest.activities == ("CPU",)
    assert "CUDA was not recorded: this process had not used it yet" in manifest.lost
    assert arguments_for(manifest, analyse=False) == ("--only", "memory")


class Library:
    """A fake of CUPTI."""

    def __init__(self, did: list[object]) -> None:
        self._did = did

    def cuptiActivityDisable(self, kind: int) -> None:  # noqa: N802 - as CUPTI has it
        self._did.append(kind)


def test_the_recording_of_a_device_ends_with_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording ends after the last kernel, so kernels of later steps are not kept."""
    did: list[object] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: did.append("waited"))
    monkeypatch.setattr("dynprof.backends.torch.closing.loaded_cupti", lambda: Library(did))
    assert "waiting for the device" in synchronize_device("cuda")
    concurrent_kernels, runtime_calls = 10, 5
    assert did[0] == "waited"
    assert {concurrent_kernels, runtime_calls} < set(did)
    assert synchronize_device(None) == ""


def test_a_device_whose_recording_cannot_be_ended_is_closed_inline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even with DYNPROF_CLOSE=detached: without CUPTI its recording would include later steps."""
    monkeypatch.setenv("DYNPROF_CLOSE", "detached")
    monkeypatch.setattr(
        closing, "loaded_cupti", lambda: None
    )  # a build for CUDA loads it with itself
    functions, how = choose_close(BOTH)
    assert functions is None
    assert "beyond the window" in how

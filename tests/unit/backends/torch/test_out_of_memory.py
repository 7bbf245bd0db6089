"""Device memory and failed allocations, with a fake of torch: there is no device here."""

from __future__ import annotations

import pickle
import sys
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.backends.torch.out_of_memory import (
    OutOfMemory,
    OutOfMemoryObserver,
    device_memory,
    write_snapshot,
)
from tests.unit.backends.torch.fake_torch import FakeTorch

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> FakeTorch:
    """Return a torch that has not used its devices yet."""
    fake = FakeTorch()
    monkeypatch.setitem(sys.modules, "torch", fake)
    return fake


def test_device_that_is_not_used_is_not_started(torch: FakeTorch, tmp_path: Path) -> None:
    """Torch would start it, or crash."""
    observer = OutOfMemoryObserver()
    observer.attach()
    assert torch.observers == []
    assert device_memory() == (0, 0)
    torch.has_history = True
    assert write_snapshot(tmp_path / "rank_0") is None


def test_memory_is_that_of_all_devices(torch: FakeTorch) -> None:
    """A rank may use several."""
    torch.is_initialized = True
    assert device_memory() == (3, 10)


def test_observer_is_attached_once_and_gets_megabytes(torch: FakeTorch) -> None:
    """Torch cannot detach it, so that an observer without a session does nothing."""
    observer = OutOfMemoryObserver()
    seen: list[Any] = []
    torch.is_initialized = True
    for _ in range(3):
        observer.attach()
    (observe,) = torch.observers
    observe(1, 2_000_000, 80_000_000, 500_000)
    observer.act = seen.append
    observe(1, 2_000_000, 80_000_000, 500_000)
    assert seen == [OutOfMemory(1, 2.0, 80.0, 0.5)]


def test_allocation_that_fails_during_the_call_is_left_out(torch: FakeTorch) -> None:
    """Neither a thread that fails at the same time nor the call itself may wait for the first."""
    observer = OutOfMemoryObserver()
    seen: list[Any] = []
    torch.is_initialized = True
    observer.attach()
    (observe,) = torch.observers

    def act(failed: OutOfMemory) -> None:
        seen.append(failed.device)
        observe(failed.device + 1, 0, 0, 0)

    observer.act = act
    observe(0, 0, 0, 0)
    observe(5, 0, 0, 0)
    assert seen == [0, 5]


def test_allocator_without_observers_is_asked_once(torch: FakeTorch) -> None:
    """``cudaMallocAsync`` and pluggable allocators raise."""

    def refuse(_: object) -> None:
        torch.observers.append(bool)
        raise RuntimeError("this allocator does not yet support attachOutOfMemoryObserver")

    torch._C._cuda_attach_out_of_memory_observer = refuse
    torch.is_initialized = True
    observer = OutOfMemoryObserver()
    with pytest.raises(RuntimeError):
        observer.attach()
    observer.attach()
    assert len(torch.observers) == 1


def test_snapshot_is_written_where_the_history_is_on(torch: FakeTorch, tmp_path: Path) -> None:
    """The script has switched it on; dynprof neither does nor switches it off."""
    torch.is_initialized = True
    assert write_snapshot(tmp_path / "rank_0") is None
    torch.has_history = True
    path = write_snapshot(tmp_path / "rank_0")
    assert path == tmp_path / "rank_0.memory_snapshot.pickle"
    assert pickle.loads(path.read_bytes()) == {"segments": [1]}  # noqa: S301

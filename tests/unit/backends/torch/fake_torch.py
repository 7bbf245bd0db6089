"""A torch with two CUDA devices, as far as memory is concerned."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeTorch:
    """torch with two CUDA devices, as far as this module uses it."""

    def __init__(self) -> None:
        self.is_initialized = self.has_history = False
        self.observers: list[Callable[..., object]] = []
        self._C = SimpleNamespace(
            _cuda_attach_out_of_memory_observer=self.attach,
            _cuda_isHistoryEnabled=lambda: self.has_history,
        )
        self.cuda = SimpleNamespace(
            is_initialized=lambda: self.is_initialized,
            device_count=lambda: 2,
            memory=SimpleNamespace(
                memory_stats_as_nested_dict=self.stats, _snapshot=lambda: {"segments": [1]}
            ),
        )

    def attach(self, observer: Callable[..., object]) -> None:
        """Keep an observer; torch crashes before the device is used."""
        assert self.is_initialized
        self.observers.append(observer)

    def stats(self, device: int) -> dict[str, Any]:
        """Return the allocator's numbers in bytes."""
        assert self.is_initialized
        return {
            "allocated_bytes": {"all": {"current": 3_000_000 * (1 - device)}},
            "reserved_bytes": {"all": {"current": 5_000_000}},
        }

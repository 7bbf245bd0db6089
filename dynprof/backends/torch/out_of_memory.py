"""The memory of CUDA devices in this process, and a call when an allocation on them fails.

ROCm's devices are CUDA's to torch. Other devices have no such observer that dynprof could use:
XPU has none, and those of NPU and MTIA were not tested. Nothing here starts or waits for a device.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from dynprof.backends.torch.collectors import MemoryHistory
from dynprof.backends.torch.features import is_used
from dynprof.runtime.modules import imported_module

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MB = 1e6
"""Bytes of a MB."""


class DeviceMemory(NamedTuple):
    """The memory that torch's allocator has on all devices, in MB (10^6 bytes).

    Attributes:
        allocated_mb: What tensors use.
        reserved_mb: What the allocator holds, for tensors or for reuse.
    """

    allocated_mb: float = 0.0
    reserved_mb: float = 0.0


class OutOfMemory(NamedTuple):
    """An allocation that a device has refused.

    Attributes:
        device: The number of the device.
        wanted_mb: What was requested, in MB (10^6 bytes).
        total_mb: The memory of the device, or the part of it that the process may use.
        free_mb: What the device has free.
    """

    device: int
    wanted_mb: float
    total_mb: float
    free_mb: float


def device_memory() -> DeviceMemory:
    """Return the memory of all CUDA devices; zeros while the process uses none.

    The allocator's lock is taken for each device. Its holder is rarely longer inside than a call of
    ``cudaMalloc``.
    """
    if (torch := _torch_with_cuda()) is None:
        return DeviceMemory()
    numbers = range(torch.cuda.device_count())
    found = [torch.cuda.memory.memory_stats_as_nested_dict(number) for number in numbers]
    allocated, reserved = (
        sum(one[kind]["all"]["current"] for one in found if one) / _MB
        for kind in ("allocated_bytes", "reserved_bytes")
    )
    return DeviceMemory(allocated, reserved)


def write_snapshot(stem: Path) -> Path | None:
    """Write the allocator's snapshot for torch's memory viewer, if its history is being recorded.

    Args:
        stem: The path of the file without its suffixes.

    Returns:
        The file; None without a history.
    """
    torch = _torch_with_cuda()
    is_enabled = getattr(getattr(torch, "_C", None), "_cuda_isHistoryEnabled", None)
    if torch is None or is_enabled is None or not is_enabled():
        return None
    history = MemoryHistory(torch.cuda.memory, is_recording=True)
    history.start()
    history.stop()
    history.save(stem)
    return history.path(stem)


class OutOfMemoryObserver:
    """Calls a function when a CUDA device refuses an allocation.

    torch cannot detach an observer, so that one serves all sessions of the process. It is called
    on the allocating thread, before the script's exception, and without the allocator's lock.

    Attributes:
        act: The function. It must be short and never wait for another thread.
    """

    def __init__(self) -> None:
        self.act: Callable[[OutOfMemory], object] | None = None
        self._is_attached = False
        self._acting = threading.Lock()

    def attach(self) -> None:
        """Attach it, once the process uses CUDA: torch crashes or starts the device before.

        Raises:
            RuntimeError: The allocator of this process has no observers. Later calls do nothing.
        """
        if self._is_attached or (torch := _torch_with_cuda()) is None:
            return
        self._is_attached = True
        if attach := getattr(torch._C, "_cuda_attach_out_of_memory_observer", None):
            attach(self._observe)

    def _observe(self, device: int, wanted: int, total: int, free: int) -> None:
        """Take the numbers of torch, in bytes."""
        act = self.act
        if act is None or not self._acting.acquire(blocking=False):  # another thread is inside
            return
        try:
            act(OutOfMemory(device, wanted / _MB, total / _MB, free / _MB))
        finally:
            self._acting.release()


OBSERVER = OutOfMemoryObserver()


def _torch_with_cuda() -> Any:
    torch = imported_module("torch")
    return torch if torch is not None and is_used(torch, "CUDA") else None

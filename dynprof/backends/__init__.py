"""The profilers that can serve a window, in the order in which ``auto`` prefers them."""

from dynprof.backends.base import Backend, Recording
from dynprof.backends.npu import NpuBackend
from dynprof.backends.python import PythonBackend
from dynprof.backends.torch import TorchBackend


def all_backends() -> tuple[Backend, ...]:
    """Return every backend; making one imports nothing heavy."""
    return (NpuBackend(), TorchBackend(), PythonBackend())


__all__ = ["Backend", "Recording", "all_backends"]

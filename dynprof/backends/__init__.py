"""The profilers that can serve a window, in the order in which ``auto`` prefers them."""

from dynprof.backends.base import Backend, Recording
from dynprof.backends.npu import NpuBackend
from dynprof.backends.python import PythonBackend
from dynprof.backends.torch import TorchBackend


def all_backends(*, for_script: bool = False) -> tuple[Backend, ...]:
    """Return every backend; making one imports nothing heavy.

    Args:
        for_script: The script asks itself, and needs no test of the detached close.
    """
    return (NpuBackend(), TorchBackend(tests_close=not for_script), PythonBackend())


__all__ = ["Backend", "Recording", "all_backends"]

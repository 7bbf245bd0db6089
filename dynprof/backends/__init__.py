"""The profilers that can serve a window, in the order in which ``auto`` prefers them."""

from dynprof.backends.base import Backend, Recording
from dynprof.backends.npu import NpuBackend
from dynprof.backends.python import PythonBackend
from dynprof.backends.torch import TorchBackend


def all_backends(*, for_script: bool = False, detaches: bool = True) -> tuple[Backend, ...]:
    """Return every backend; making one imports nothing heavy.

    Args:
        for_script: The script asks itself, and rather waits than be put off.
        detaches: Whether a recording may be closed in the detached way, which is tested first.
    """
    torch = TorchBackend(for_script=for_script, detaches=detaches)
    return (NpuBackend(), torch, PythonBackend())


__all__ = ["Backend", "Recording", "all_backends"]

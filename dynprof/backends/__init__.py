"""The profilers that can serve a window, in the order in which ``auto`` prefers them.

In comes a plan; out goes a recording, which closes fast and is saved slowly. Torch is imported
here alone, once the script has, and by the demo's script. Never decides when to open or close.
Others use :func:`all_backends`, ``base`` (the seam), ``npu`` and ``npu_exports``.
"""

from dynprof.backends.base import Backend, Recording
from dynprof.backends.marks import MarksBackend
from dynprof.backends.npu import NpuBackend
from dynprof.backends.python import PythonBackend
from dynprof.backends.torch.backend import TorchBackend


def all_backends(*, for_script: bool = False, detaches: bool = True) -> tuple[Backend, ...]:
    """Return every backend; making one imports nothing heavy.

    Args:
        for_script: The script asks itself, and rather waits than be put off.
        detaches: Whether a recording may be closed in the detached way, which is tested first.
    """
    torch = TorchBackend(for_script=for_script, detaches=detaches)
    return (NpuBackend(), torch, PythonBackend(), MarksBackend())


__all__ = ["Backend", "Recording", "all_backends"]

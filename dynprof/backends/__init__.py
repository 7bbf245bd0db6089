"""The profilers that can serve a window, in the order in which ``auto`` prefers them.

Input: a plan. Output: a recording, which closes fast and is saved slowly. Only this package and
the demo's script import torch; this package does so after the script has. It never decides when
to open or close. Others use :func:`all_backends`, ``base`` (the interface), ``npu`` and
``npu_exports``.
"""

from dynprof.backends.base import Backend, Recording
from dynprof.backends.marks import MarksBackend
from dynprof.backends.npu import NpuBackend
from dynprof.backends.python import PythonBackend
from dynprof.backends.torch.backend import TorchBackend


def all_backends(*, for_script: bool = False, detaches: bool = True) -> tuple[Backend, ...]:
    """Return every backend; creating one imports nothing heavy.

    Args:
        for_script: The script itself requests the recording and prefers waiting to a refusal.
        detaches: Whether a recording may use the detached close, after a self-test.
    """
    torch = TorchBackend(for_script=for_script, detaches=detaches)
    return (NpuBackend(), torch, PythonBackend(), MarksBackend())


__all__ = ["Backend", "Recording", "all_backends"]

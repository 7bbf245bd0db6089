"""CUPTI, through which Kineto records what a CUDA device does."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import sys

_KINDS = (1, 2, 4, 5, 10, 17, 38, 39)
"""What Kineto has recorded, by the numbers of ``CUpti_ActivityKind``: copies, sets, calls of the
driver and of the runtime, kernels, overhead, synchronisations, correlations."""


def stop_recording() -> None:
    """Record nothing more, as Kineto says it itself once it begins to collect; microseconds."""
    if library := loaded():
        for kind in _KINDS:
            library.cuptiActivityDisable(kind)


@functools.cache
def loaded() -> ctypes.CDLL | None:
    """Return the library that torch has loaded with itself; None where it has none."""
    major = str(sys.modules["torch"].version.cuda).partition(".")[0]
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(f"libcupti.so.{major}", mode=os.RTLD_NOLOAD)
        library.cuptiActivityDisable.argtypes = [ctypes.c_uint32]
        return library
    return None

"""The native module: only its parts for the profiler and for marks."""

from torch_npu._C import _mstx
from torch_npu._C._mstx import _mark

__all__ = ["_mark", "_mstx"]

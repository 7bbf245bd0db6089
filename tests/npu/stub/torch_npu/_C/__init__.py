"""The native module: its parts of the profiler and of marks only."""

from torch_npu._C import _mstx
from torch_npu._C._mstx import _mark

__all__ = ["_mark", "_mstx"]

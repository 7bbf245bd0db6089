"""What the vendor's samples import from ``torch_npu.profiler.profiler``."""

from dynprof.profiler.offline import analyse
from dynprof.profiler.profiles import profile

__all__ = ["analyse", "profile"]

"""The names that users of ``torch_npu.profiler`` and ``torch.profiler`` look for.

``from dynprof.profiler import dynamic_profile as dp`` works as it does there.
"""

from dynprof import dynamic_profile
from dynprof.profiler.schedule import ProfilerAction, schedule

__all__ = ["ProfilerAction", "dynamic_profile", "schedule"]

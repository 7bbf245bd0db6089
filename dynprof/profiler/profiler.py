"""The profiles, their handler and the analysis, under ``torch_npu.profiler``'s module name."""

from dynprof.profiler.enums import supported_activities
from dynprof.profiler.handlers import tensorboard_trace_handler
from dynprof.profiler.kineto_profile import _KinetoProfile
from dynprof.profiler.offline import analyse
from dynprof.profiler.profiles import profile

__all__ = [
    "_KinetoProfile",
    "analyse",
    "profile",
    "supported_activities",
    "tensorboard_trace_handler",
]

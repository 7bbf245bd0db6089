"""The profiles with their handler and analysis, where ``torch_npu.profiler`` has them."""

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

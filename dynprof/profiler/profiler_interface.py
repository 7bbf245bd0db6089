"""The query of activities, where ``torch_npu.profiler`` has it."""

from dynprof.profiler.enums import supported_activities

__all__ = ["supported_activities"]

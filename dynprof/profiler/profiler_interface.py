"""The query of activities, under ``torch_npu.profiler``'s module name."""

from dynprof.profiler.enums import supported_activities

__all__ = ["supported_activities"]

"""Schedules and their actions, under ``torch_npu.profiler``'s module name."""

from dynprof.windows.window import ProfilerAction, Schedule

__all__ = ["ProfilerAction", "Schedule"]

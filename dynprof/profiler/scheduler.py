"""Schedules and their actions, under ``torch_npu.profiler``'s module name."""

from dynprof.windows.schedule import ProfilerAction, Schedule

__all__ = ["ProfilerAction", "Schedule"]

"""Schedules and their actions, where ``torch_npu.profiler`` has them."""

from dynprof.windows.schedule import ProfilerAction, Schedule

__all__ = ["ProfilerAction", "Schedule"]

"""Windows in a script: the API of ``torch_npu.profiler`` and ``torch.profiler``.

``from dynprof.profiler import dynamic_profile as dp`` works as with the vendor and loads nothing
else: other names are imported on first use. Input: a script's arguments and steps. Output: captures
and torch's own results. This package never watches a file. ``acl`` uses ``output_paths``,
``saving`` and ``script_windows``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dynprof.profiler import dynamic_profile
from dynprof.windows.window import ProfilerAction
from dynprof.windows.window import Schedule as schedule  # noqa: N813 - the vendor's name

if TYPE_CHECKING:
    from dynprof.profiler import experimental_config as experimental_config
    from dynprof.profiler import profiler as profiler
    from dynprof.profiler import profiler_interface as profiler_interface
    from dynprof.profiler import scheduler as scheduler
    from dynprof.profiler.enums import (
        AiCMetrics,
        ExportType,
        HostSystem,
        ProfilerActivity,
        ProfilerLevel,
        supported_activities,
        supported_ai_core_metrics,
        supported_export_type,
        supported_profiler_level,
    )
    from dynprof.profiler.experimental_config import _ExperimentalConfig
    from dynprof.profiler.handlers import tensorboard_trace_handler
    from dynprof.profiler.kineto_profile import _KinetoProfile
    from dynprof.profiler.offline import analyse
    from dynprof.profiler.profiles import profile

_FROM_TORCH = ("DeviceType", "ExecutionTraceObserver", "itt", "kineto_available", "record_function")
"""Other names that scripts import from ``torch.profiler``, passed on unchanged."""
_MODULES = ("experimental_config", "profiler", "profiler_interface", "scheduler")
"""Modules that the vendor has, too."""
_HOMES = {
    "AiCMetrics": "enums",
    "ExportType": "enums",
    "HostSystem": "enums",
    "ProfilerActivity": "enums",
    "ProfilerLevel": "enums",
    "_ExperimentalConfig": "experimental_config",
    "_KinetoProfile": "kineto_profile",
    "analyse": "offline",
    "profile": "profiles",
    "supported_activities": "enums",
    "supported_ai_core_metrics": "enums",
    "supported_export_type": "enums",
    "supported_profiler_level": "enums",
    "tensorboard_trace_handler": "handlers",
}


def __getattr__(name: str) -> object:
    """Import and return one of the names below, or one of the vendor's modules."""
    if name in _FROM_TORCH:
        return getattr(importlib.import_module("torch.profiler"), name)
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "AiCMetrics",
    "ExportType",
    "HostSystem",
    "ProfilerAction",
    "ProfilerActivity",
    "ProfilerLevel",
    "_ExperimentalConfig",
    "_KinetoProfile",
    "analyse",
    "dynamic_profile",
    "profile",
    "schedule",
    "supported_activities",
    "supported_ai_core_metrics",
    "supported_export_type",
    "supported_profiler_level",
    "tensorboard_trace_handler",
]

"""The enumerations of the Ascend profiler's API, and which members are supported here."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.requests.capabilities import Capabilities


class ProfilerActivity(Enum):
    """An activity to record."""

    CPU = "CPU"
    CUDA = "CUDA"
    XPU = "XPU"
    NPU = "NPU"


class _Name(StrEnum):
    """An enumeration whose members are, and print as, the vendor's strings."""

    __str__ = str.__str__


class ProfilerLevel(_Name):
    """The level of detail."""

    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AiCMetrics(_Name):
    """Metrics of an NPU's AI cores; the config file uses the members' names."""

    AiCoreNone = "ACL_AICORE_NONE"
    PipeUtilization = "ACL_AICORE_PIPE_UTILIZATION"
    ArithmeticUtilization = "ACL_AICORE_ARITHMETIC_UTILIZATION"
    Memory = "ACL_AICORE_MEMORY_BANDWIDTH"
    MemoryL0 = "ACL_AICORE_L0B_AND_WIDTH"
    MemoryUB = "ACL_AICORE_MEMORY_UB"
    ResourceConflictRatio = "ACL_AICORE_RESOURCE_CONFLICT_RATIO"
    L2Cache = "ACL_AICORE_L2_CACHE"
    MemoryAccess = "ACL_AICORE_MEMORY_ACCESS"


class ExportType(_Name):
    """The format of the tables that the analysis writes."""

    Text = "text"
    Db = "db"


class HostSystem(_Name):
    """Host resources to sample."""

    CPU = "cpu"
    MEM = "mem"
    DISK = "disk"
    NETWORK = "network"
    OSRT = "osrt"
    NUMA = "numa"


def supported_activities() -> set[ProfilerActivity]:
    """Return the activities that this process can record now."""
    return {ProfilerActivity(name) for name in available_activities()}


def available_activities() -> list[str]:
    """Return the names of the activities that this process can record now."""
    return list(_usable_profiler().activities)


def supported_profiler_level() -> set[ProfilerLevel]:
    """Return the levels that differ here; plain Python has only ``Level_none`` and ``Level0``."""
    if _why_no_effect("profiler_level"):
        return {ProfilerLevel.Level_none, ProfilerLevel.Level0}
    return set(ProfilerLevel)


def supported_ai_core_metrics() -> set[AiCMetrics]:
    """Return the metrics that can be sampled here: only ``AiCoreNone`` without an NPU."""
    return {AiCMetrics.AiCoreNone} if _why_no_effect("aic_metrics") else set(AiCMetrics)


def supported_export_type() -> set[ExportType]:
    """Return the supported table formats."""
    return set() if _why_no_effect("export_type") else set(ExportType)


def _why_no_effect(setting: str) -> str | None:
    from dynprof.config import ExperimentalConfig
    from dynprof.requests.plan import effects

    return effects(ExperimentalConfig)[setting].why_no_effect(_usable_profiler().backend)


def _usable_profiler() -> Capabilities:
    """Return the capabilities of the profiler that would record now."""
    from dynprof.backends import all_backends
    from dynprof.requests.capabilities import Capabilities

    capabilities = (
        backend.capabilities() for backend in all_backends(for_script=True, detaches=False)
    )
    return next((capable for capable in capabilities if not capable.missing), Capabilities("none"))

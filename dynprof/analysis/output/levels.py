"""What the vendor's ``profiler_level`` leaves out of its tables.

A trace that dynprof did not record has no level: all files are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

LEVELS = ("Level_none", "Level0", "Level1", "Level2")
"""Levels, each of which includes those before it."""
LEVELLED = {
    "kernel_details.csv": "Level0",
    "step_trace_time.csv": "Level0",
    "op_statistic.csv": "Level0",
    "analysis.db": "Level0",
    "communication.json": "Level1",
    "communication_matrix.json": "Level1",
    "api_statistic.csv": "Level1",
}
"""The lowest level at which a file is written. Other files are always written."""


def level_of(measured: MeasuredTrace) -> str:
    """Return the level that a trace was recorded with; the highest one without a manifest."""
    config = measured.manifest.request.config if measured.manifest else {}
    inner = config.get("experimental_config")
    default = "Level0" if measured.manifest else LEVELS[-1]
    said = inner.get("profiler_level", default) if isinstance(inner, dict) else default
    return said if said in LEVELS else default


def includes(measured: MeasuredTrace, level: str) -> bool:
    """Return whether a trace's level includes another one."""
    return LEVELS.index(level_of(measured)) >= LEVELS.index(level)


def is_written(measured: MeasuredTrace, name: str) -> bool:
    """Return whether a trace's level has a file."""
    return name not in LEVELLED or includes(measured, LEVELLED[name])


def why_not(measured: MeasuredTrace, name: str) -> str:
    """Return why a trace's level leaves a file out; empty if it does not."""
    if is_written(measured, name):
        return ""
    return why_not_at(measured, LEVELLED[name])


def why_not_at(measured: MeasuredTrace, level: str) -> str:
    """Return the reason for the absence of a file that needs a higher level."""
    return f"profiler_level is {level_of(measured)}; {level} has it"

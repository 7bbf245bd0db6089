"""Why a window closes before its time, and why a request that was accepted does not open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynprof.errors import Problem
from dynprof.requests.plan import past_start

if TYPE_CHECKING:
    from dynprof.requests.request import Request
    from dynprof.windows.open_window import OpenWindow

MAX_FAILURES = 3
"""A backend that failed so many windows in a row rests until the next edit."""


def why_early(current: OpenWindow, now_s: float, memory_mb: float) -> str:
    """Return which limit of its config an open window has passed; empty where none.

    Args:
        current: The window.
        now_s: Monotonic time.
        memory_mb: Resident memory of the process.
    """
    limits = current.request.config.limits
    seconds, grown_mb = now_s - current.opened_s, memory_mb - current.memory_mb
    if limits.max_seconds is not None and seconds > limits.max_seconds:
        return f"{seconds:.1f} s have gone, limits.max_seconds is {limits.max_seconds:g}"
    if limits.max_memory_mb is not None and grown_mb > limits.max_memory_mb:
        text = f"the process grew by {grown_mb:.0f} MB"
        return f"{text}, limits.max_memory_mb is {limits.max_memory_mb:g}"
    return ""


def why_too_late(request: Request, step: int, free_disk_mb: float, failures: int) -> Problem | None:
    """Return what was fine when the edit was accepted, but no longer is.

    Args:
        request: What would open.
        step: The step that begins.
        free_disk_mb: What is free where the capture would go.
        failures: How many windows of its backend failed in a row.
    """
    least = request.config.limits.min_free_disk_mb
    if least is not None and free_disk_mb < least:
        text = f"only {free_disk_mb:,.0f} MB are free now, {least:,.0f} are asked for."
        return Problem(text, "/limits/min_free_disk_mb")
    if failures >= MAX_FAILURES:
        text = f"it failed {MAX_FAILURES} windows in a row and rests until the next edit."
        return Problem(text, "/backend")
    if request.plan.start_step is None:
        return None
    return past_start(request.config, step - 1)

"""Why a window closes before its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.windows.open_window import OpenWindow


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

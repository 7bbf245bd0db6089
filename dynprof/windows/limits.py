"""Why a window closes before its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynprof.windows.open_window import OpenWindow
    from dynprof.windows.this_process import ThisProcess

LOOK_EVERY_S = 0.05
"""The system is asked for the memory so often at most: it takes as long as a hundred marks."""
LITTLE_MB = 256.0
"""For less nobody looks at what is free."""
SHARE = 0.5
"""So much of what is free a capture may take while it is saved."""
STAYS_AWAY_S = 60.0
"""For so long steps of other threads go by without one of the thread that a window is bound to."""


def why_stuck(current: OpenWindow, now_s: float) -> str:
    """Return why the thread that alone may move a window will not; empty where it may yet.

    Args:
        current: The window.
        now_s: Monotonic time of a step on another thread.
    """
    if not current.thread.is_alive():
        return "the thread that it was opened on has ended"
    if now_s - current.moved_s > STAYS_AWAY_S:
        text = "the thread that it was opened on has ended no step"
        return f"{text} for {STAYS_AWAY_S:g} s, while others have"
    return ""


def why_forgotten(current: OpenWindow, now_s: float) -> str:
    """Return why a window that any thread may close shall not wait for a step; empty where it may.

    Nobody may ever end one again, as no request comes. A step of a training that takes long is left
    its time.

    Args:
        current: The window.
        now_s: Monotonic time.
    """
    most_s, seconds = current.request.config.limits.max_seconds, now_s - current.opened_s
    still_s = now_s - current.moved_s
    if current.window.bound_to_thread or most_s is None:
        return ""
    if seconds <= most_s or still_s <= STAYS_AWAY_S:
        return ""
    text = f"{seconds:.1f} s have gone, limits.max_seconds is {most_s:g}"
    return f"{text}, and no step has ended for {still_s:.0f} s"


def why_early(current: OpenWindow, now_s: float, process: ThisProcess) -> str:
    """Return which limit of its config an open window has passed; empty where none.

    Args:
        current: The window.
        now_s: Monotonic time.
        process: Which knows its memory.
    """
    limits = current.request.config.limits
    seconds = now_s - current.opened_s
    if limits.max_seconds is not None and seconds > limits.max_seconds:
        gone = f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"
        return f"{gone} s have gone, limits.max_seconds is {limits.max_seconds:g}"
    if limits.max_memory_mb is None or now_s - current.asked_s < LOOK_EVERY_S:
        return ""
    current.asked_s, resident_mb = now_s, process.memory_mb()
    grown_mb = resident_mb - current.memory_mb
    if grown_mb > limits.max_memory_mb:
        text = f"the process grew by {grown_mb:.0f} MB"
        return f"{text}, limits.max_memory_mb is {limits.max_memory_mb:g}"
    times = current.saving_takes - 1
    if not times:
        return ""
    events_mb = current.events_memory.look(process, current.window.recorded, now_s, resident_mb)
    return _why_no_room(events_mb, events_mb * times, process)


def _why_no_room(events_mb: float, more_mb: float, process: ThisProcess) -> str:
    """Say why what is recorded could not be saved if it became more; empty where it could."""
    if more_mb < LITTLE_MB or more_mb < SHARE * (free_mb := process.free_mb()):
        return ""
    text = f"memory grows from step to step, by {events_mb:,.0f} MB so far, as events make it grow"
    text = f"{text}; to save so many may take {more_mb:,.0f} MB, and {free_mb:,.0f} MB are free"
    return f"{text}; limits.max_memory_mb null lets it go on"

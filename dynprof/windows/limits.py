"""Why a window closes before its time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dynprof.backends.base import Load
from dynprof.runtime.plural import about

if TYPE_CHECKING:
    from dynprof.windows.driver import WindowDriver

LOOK_EVERY_S, REST_FACTOR = 0.05, 5.0
"""The time between two looks at memory and events, or this many times what the last one took, if
that is less: one takes 0.2 ms, and milliseconds in a control group or with many free pieces."""
MAX_SHARE = 0.5
"""The share of the free memory that a capture may take while it is saved."""
DISCARD_SHARE = 0.8
"""A capture that takes a larger share of it is discarded: the training needs memory as well, and
what a capture takes is an estimate."""
LOW_SHARE = 0.2
"""The share of the free memory, as it was before, at which a window closes inside a step."""
_LIFTED = "; limits.max_memory_mb null lifts this limit"
_FEWER = "; ask for fewer steps, or without stacks, shapes and memory"
NO_STEP_S = 60.0
"""For so long steps of other threads go by without one of the thread that a window is bound to."""


def update_load(current: WindowDriver, *, inside_step: bool = False) -> Load | None:
    """Note what a window's recording holds, and return it; None where nothing is to be bounded."""
    load = current.window.load(inside_step=inside_step)
    current.load = load or current.load
    if load and not inside_step:
        current.load_steps = current.window.recorded
    return load


def why_stuck(current: WindowDriver, now_s: float) -> str:
    """Return why the thread that alone may move a window will not; empty where it may yet.

    Args:
        current: The window.
        now_s: Monotonic time of a step on another thread.
    """
    if not current.thread.is_alive():
        return "the thread that it was opened on has ended"
    if now_s - current.moved_s > NO_STEP_S:
        text = "the thread that it was opened on has ended no step"
        return f"{text} for {NO_STEP_S:g} s, while others have"
    return ""


def why_no_step(current: WindowDriver, now_s: float) -> str:
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
    if seconds <= most_s or still_s <= NO_STEP_S:
        return ""
    text = f"{seconds:.1f} s have gone, limits.max_seconds is {most_s:g}"
    return f"{text}, and no step has ended for {still_s:.0f} s"


def why_early(current: WindowDriver, now_s: float) -> str:
    """Return which limit of its config an open window has passed at a step's end; empty where none.

    Args:
        current: The window.
        now_s: Monotonic time.
    """
    limits = current.request.config.limits
    seconds = now_s - current.opened_s
    if limits.max_seconds is not None and seconds > limits.max_seconds:
        gone = f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"
        return f"{gone} s have gone, limits.max_seconds is {limits.max_seconds:g}"
    if now_s < current.due_s:
        return ""
    began_s = time.thread_time()
    try:
        return _why_memory(current) or _why_load(current)
    finally:
        current.due_s = now_s + min(LOOK_EVERY_S, REST_FACTOR * (time.thread_time() - began_s))


def _why_memory(current: WindowDriver) -> str:
    """Say that the process has grown too much; empty where it has not."""
    most_mb = current.request.config.limits.max_memory_mb
    if most_mb is None or (grown_mb := current.process.memory_mb() - current.memory_mb) <= most_mb:
        return ""
    return f"the process grew by {grown_mb:.0f} MB, limits.max_memory_mb is {most_mb:g}"


def _why_load(current: WindowDriver) -> str:
    """Say which limit the window will have passed at the next look; empty where none."""
    before, load = current.load, update_load(current)
    if not load:
        return ""
    ahead = Load(2 * load.events - before.events, 2 * load.saving_mb - before.saving_mb)
    return _why_too_much(current, load, ahead)


def why_too_much_inside(current: WindowDriver) -> str:
    """Return why a window shall not wait for the end of its step; empty where it may.

    Its calls are not counted before that: what it has allocated may be tensors. So memory that runs
    short is a reason, too.

    Args:
        current: The window.
    """
    load = update_load(current, inside_step=True)
    if not load:
        return ""
    if current.request.config.limits.max_memory_mb is not None and current.free_mb:
        free_mb = current.process.free_mb()
        if free_mb < LOW_SHARE * current.free_mb:
            text = f"{free_mb:,.0f} MB of memory are left of {current.free_mb:,.0f}"
            return f"{text} that were free as the window opened{_LIFTED}"
    halved = Load(load.events // 2, load.saving_mb)
    return _why_too_much(current, load, halved)


def why_too_late(current: WindowDriver) -> str:
    """Return why what an open window holds cannot be saved; empty where it can, most likely.

    Args:
        current: The window, about to be closed.
    """
    load = current.load
    if current.request.config.limits.max_memory_mb is None or not load.saving_mb:
        return ""
    free_mb = current.process.free_mb()
    if load.saving_mb <= DISCARD_SHARE * free_mb:
        return ""
    text = f"to save its {about(load.events)} events would take about {load.saving_mb:,.0f} MB"
    free = f"{free_mb:,.0f} MB are free, of which a capture may take {DISCARD_SHARE:.0%}"
    return f"{text} of memory, and {free}; nothing is kept{_FEWER}"


def _why_too_much(current: WindowDriver, load: Load, ahead: Load) -> str:
    """Say which limit is passed; empty where none.

    Args:
        current: The window.
        load: What it holds.
        ahead: What it will hold at the next look, so that the limit holds for what is kept.
    """
    limits = current.request.config.limits
    if limits.max_events and ahead.events > limits.max_events:
        text = f"about {about(load.events)} events are recorded"
        return f"{text}, limits.max_events is {limits.max_events:,}"
    if limits.max_memory_mb is None or not ahead.saving_mb:
        return ""
    free_mb = current.process.free_mb()
    if ahead.saving_mb <= MAX_SHARE * free_mb:
        return ""
    text = f"to save the {about(load.events)} events so far takes about {load.saving_mb:,.0f} MB"
    free = f"{free_mb:,.0f} MB are free, of which a window may take half with its next steps"
    return f"{text} of memory, and {free}{_LIFTED}"

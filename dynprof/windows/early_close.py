"""Limits of a window: the reasons to close it early.

The limit of free disk is elsewhere: :mod:`dynprof.requests.plan` checks it at a save,
:mod:`dynprof.windows.admission` when a window opens, and :mod:`dynprof.captures.exporter` while it
saves one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dynprof.backends.base import Load
from dynprof.runtime.plural import about

if TYPE_CHECKING:
    from dynprof.windows.driver import WindowDriver

CHECK_EVERY_S, REST_FACTOR = 0.05, 5.0
"""Interval of checks of memory and events; this many times the duration of the last check, if less.
A check takes 0.2 ms, or milliseconds in a cgroup or with many free pieces of memory."""
MAX_SHARE = 0.5
"""The share of the free memory that saving a capture may take."""
DISCARD_SHARE = 0.8
"""A capture that takes a larger share is discarded: the training needs memory too, and the need of
a capture is an estimate."""
LOW_SHARE = 0.2
"""A window closes inside a step when this share of the free memory at its opening is left."""
_LIFTED = "; limits.max_memory_mb null lifts this limit"
_FEWER = "; ask for fewer steps, or without stacks, shapes and memory"
NO_STEP_S = 60.0
"""How long the thread of a window may end no step, while other threads do, before it closes."""


def update_load(current: WindowDriver, *, inside_step: bool = False) -> Load | None:
    """Note and return the load of a window's recording; None if it has no limits to check."""
    load = current.window.load(inside_step=inside_step)
    current.load = load or current.load
    if load and not inside_step:
        current.load_steps = current.window.recorded
    return load


def why_thread_stopped(current: WindowDriver, now_s: float) -> str:
    """Return why the only thread that may move a window will not; empty if it still may.

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
    """Return why a window that any thread may close waits no longer for a step; else empty.

    A server without requests may never end a step again. A long training step gets its time.

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
    text = f"{seconds:.1f} s have passed, limits.max_seconds is {most_s:g}"
    return f"{text}, and no step has ended for {still_s:.0f} s"


def why_early(current: WindowDriver, now_s: float) -> str:
    """Return the limit of its config that a window has passed at a step's end; else empty.

    Args:
        current: The window.
        now_s: Monotonic time.
    """
    limits = current.request.config.limits
    seconds = now_s - current.opened_s
    if limits.max_seconds is not None and seconds > limits.max_seconds:
        gone = f"{seconds:.1f}" if seconds >= 1 else f"{seconds:.2g}"
        return f"{gone} s have passed, limits.max_seconds is {limits.max_seconds:g}"
    if now_s < current.due_s:
        return ""
    began_s = time.thread_time()
    try:
        return _why_memory(current) or _why_load(current)
    finally:
        current.due_s = now_s + min(CHECK_EVERY_S, REST_FACTOR * (time.thread_time() - began_s))


def _why_memory(current: WindowDriver) -> str:
    """Return that the process has grown too much; empty if it has not."""
    most_mb = current.request.config.limits.max_memory_mb
    if most_mb is None or (grown_mb := current.process.memory_mb() - current.memory_mb) <= most_mb:
        return ""
    return f"the process grew by {grown_mb:.0f} MB, limits.max_memory_mb is {most_mb:g}"


def _why_load(current: WindowDriver) -> str:
    """Return the limit that the window will have passed at the next check; else empty."""
    before, load = current.load, update_load(current)
    if not load:
        return ""
    ahead = Load(2 * load.events - before.events, 2 * load.saving_mb - before.saving_mb)
    return _why_too_much(current, load, ahead)


def why_too_much_inside(current: WindowDriver) -> str:
    """Return why a window must close before the end of its step; else empty.

    Calls of the step are counted only at its end: memory allocated inside may be tensors. So low
    memory is a reason too.

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
    """Return why the recording of a window cannot be saved; empty if it probably can.

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
    free = f"{free_mb:,.0f} MB are free, of which saving may take {DISCARD_SHARE:.0%}"
    return f"{text} of memory, and {free}; nothing is kept{_FEWER}"


def _why_too_much(current: WindowDriver, load: Load, ahead: Load) -> str:
    """Return the limit that is passed; else empty.

    Args:
        current: The window.
        load: Its load now.
        ahead: Its load at the next check, so that the limit holds for what is kept.
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
    free = f"{free_mb:,.0f} MB are free, of which saving may take half, the next steps included"
    return f"{text} of memory, and {free}{_LIFTED}"

"""Processes that dynprof does not watch: their threads are greenlets, or they do not train."""

from __future__ import annotations

import sys

from dynprof.runtime.rank import why_no_rank

_GEVENT = ("threading", "queue", "select", "subprocess")
_LEAVES = "patch_all(thread=False, queue=False, select=False, subprocess=False)"
_EVENTLET = ("thread", "select")


def why_unsupported(rank: int | None = None) -> str | None:
    """Return why this process cannot or must not be watched; None if it can.

    Args:
        rank: The rank that the caller names; without it, a worker of a loader is no rank.
    """
    if text := why_no_threads():
        return text
    reason = why_no_rank() if rank is None else None
    return f"{reason}; pass rank= if it trains" if reason else reason


def why_no_threads() -> str:
    """Return what has replaced threads, and what to do; empty if nothing has."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent and any(map(gevent.is_module_patched, _GEVENT)):
        return _words("gevent", f"gevent.monkey.{_LEAVES}")
    if eventlet and any(map(eventlet.is_monkey_patched, _EVENTLET)):
        return _words("eventlet", "eventlet.monkey_patch(thread=False, select=False)")
    return ""


def _words(library: str, call: str) -> str:
    return f"{library} has replaced the threads that dynprof works with; {call} leaves them alone"

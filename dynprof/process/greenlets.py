"""Libraries that put greenlets in the place of threads: dynprof cannot work on those.

A greenlet runs only while the training lets it: a loop that computes never does, and one that
waits has the file read, the capture packed and the disk written in its own time. What blocks in C,
as waiting for file events does, stops the whole process.
"""

from __future__ import annotations

import sys

_GEVENT = ("threading", "queue", "select", "subprocess")
_LEAVES = "patch_all(thread=False, queue=False, select=False, subprocess=False)"
_EVENTLET = ("thread", "select")


def why_no_threads() -> str:
    """Say what has taken the place of threads, and what to do; empty where nothing has."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent and any(map(gevent.is_module_patched, _GEVENT)):
        return _words("gevent", f"gevent.monkey.{_LEAVES}")
    if eventlet and any(map(eventlet.is_monkey_patched, _EVENTLET)):
        return _words("eventlet", "eventlet.monkey_patch(thread=False, select=False)")
    return ""


def _words(library: str, call: str) -> str:
    return f"{library} has replaced the threads that dynprof works with; {call} leaves them alone"

"""Lets a process that has used libkineto fork children that end.

The first use of ``torch.profiler`` starts a thread of libkineto's that waits for new settings. A
child forked later has no such thread, but waits for it in ``exit()``, for ever; with torch 2.13.0
three lines without dynprof show it. So the thread is ended before a fork. Only dynolog's daemon
has use for it; where that is asked for (``KINETO_USE_DAEMON``), it is left alone.
"""

from __future__ import annotations

import ctypes
import functools
import os

from dynprof.backends.libtorch import library

_LOADER = "_ZN9libkineto12ConfigLoader"
_INSTANCE, _STOP_THREAD = f"{_LOADER}8instanceEv", f"{_LOADER}10stopThreadEv"


@functools.cache
def make_forks_safe() -> None:
    """Have the thread ended before every fork from now on; call it once libkineto is in use."""
    if os.environ.get("KINETO_USE_DAEMON"):
        return
    try:
        functions = ctypes.CDLL(str(library()))
        instance, stop_thread = functions[_INSTANCE], functions[_STOP_THREAD]
    except (OSError, AttributeError):
        return  # another build or system, which may not have the thread either
    instance.restype, instance.argtypes = ctypes.c_void_p, []
    stop_thread.restype, stop_thread.argtypes = None, [ctypes.c_void_p]
    os.register_at_fork(before=lambda: stop_thread(instance()))

"""Profile the next N steps of a training job that is already running.

The script holds two lines, ``dp.init("prof_config")`` and ``dp.step()``; an operator edits
``prof_config/profiler_config.json`` while it runs, and a trace of exactly those steps lies
beside it.
"""

from dynprof.dynamic_profile import init, set_state, shutdown, start, status, step, stop
from dynprof.version import __version__

__all__ = [
    "__version__",
    "init",
    "set_state",
    "shutdown",
    "start",
    "status",
    "step",
    "stop",
]

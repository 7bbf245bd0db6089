"""Profile the next N steps of a training job that is already running.

The script holds two lines, ``dp.init("prof_config")`` and ``dp.step()``; an operator edits
``prof_config/profiler_config.json`` while it runs, and a trace of exactly those steps lies
beside it. ``dynprof.profiler`` is the API for windows in a script; ``dynprof.acl`` a session for
the whole process; ``dynprof.mstx`` marks what happens in between.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from dynprof.dynamic_profile import init, set_state, shutdown, start, status, step, stop
from dynprof.version import __version__

if TYPE_CHECKING:
    from dynprof import acl as acl
    from dynprof import integrations as integrations
    from dynprof import mstx as mstx
    from dynprof import npu as npu
    from dynprof import phases as phases
    from dynprof import profiler as profiler
    from dynprof.phases import phase as phase
    from dynprof.runtime.graph_captures import graph_capture as graph_capture

_ROOMS = ("acl", "integrations", "mstx", "npu", "phases", "profiler")
_LATER = {"phase": "phases", "graph_capture": "runtime.graph_captures"}


def __getattr__(name: str) -> object:
    """Return one of the modules below, or what is in one, loading it when it is first asked for."""
    if name in _LATER:
        found = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = found  # as the import does with a module: the next one does not come by
        return found
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


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

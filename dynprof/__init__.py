"""Profile the next N steps of a training job that is already running.

The script has two lines, ``dp.init("prof_config")`` and ``dp.step()``. An operator edits
``prof_config/profiler_config.json`` while the job runs, and dynprof saves a trace of exactly those
steps next to it. ``dynprof.profiler`` is the API for windows in a script, and ``dynprof.acl`` a
session over the whole process. ``dynprof.mstx`` sets marks in traces.
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

_MODULES = ("acl", "integrations", "mstx", "npu", "phases", "profiler")
_LATER = {"phase": "phases", "graph_capture": "runtime.graph_captures"}


def __getattr__(name: str) -> object:
    """Load a module below, or an attribute of one, at its first use."""
    if name in _LATER:
        found = getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
        globals()[name] = found  # later accesses skip this function
        return found
    if name not in _MODULES:
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

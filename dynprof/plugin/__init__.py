"""Marks the phases of torch's training loops without a change to the script.

``import dynprof.plugin``, ``dynprof.init(..., plugin=True)`` or ``DYNPROF_PLUGIN=1`` wraps torch's
own functions: data loaders, the model's forward, backward, optimizers, saving, collectives. If
torch is imported later, they are wrapped within a second of a session, and when the next window
opens. The input is their calls. The output is marks in the domain ``phases``, while a window or a
subscriber takes them. Only the range ``step N`` is always open, from one step of the optimizer that
was created last to its next. The plugin never changes what a call does, returns or raises.
:func:`uninstall` restores every function. Only ``dynamic_profile`` uses this package.
"""

from __future__ import annotations

import os
import threading

from dynprof.marks.sinks import SINKS
from dynprof.plugin.torch_patches import Patches, unwrap_all, wrap_all
from dynprof.runtime.modules import alias_import, imported_module
from dynprof.runtime.process_hooks import call_in_child
from dynprof.runtime.standard_streams import warn_script

_patches = Patches()
_lock = threading.RLock()
_TOO_EARLY = "marks nothing before torch is imported and the next window opens; import torch first"


def install() -> None:
    """Start to mark phases; a second call wraps modules that were imported since.

    From then on ``import mstx_torch_plugin`` does the same, unless there is a real one. With
    ``DYNPROF_PLUGIN=1`` the plugin is always loaded before torch, so there is no warning.
    """
    alias_import("mstx_torch_plugin", __name__)
    with _lock:
        SINKS.before_add = _wrap
        _wrap()
        if not _patches.on and os.environ.get("DYNPROF_PLUGIN") != "1":
            warn_script(f"dynprof.plugin {_TOO_EARLY}")


def _wrap() -> bool:
    """Wrap what torch has loaded, if its import is complete; return whether marking is on."""
    if hasattr(imported_module("torch"), "autograd"):
        with _lock:
            wrap_all(_patches)
    return _patches.on


def uninstall() -> None:
    """Restore every function."""
    with _lock:
        SINKS.before_add = None
        if _patches.on:
            unwrap_all(_patches)


def _unlock_in_child() -> None:
    """Replace the lock in a forked child: the thread that held it does not exist there."""
    global _lock
    _lock = threading.RLock()


call_in_child(_unlock_in_child)
install()

__all__ = ["install", "uninstall"]

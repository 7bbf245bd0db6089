"""Marks the phases of torch's training loops without a line in the script.

``import dynprof.plugin``, ``dynprof.init(..., plugin=True)`` or ``DYNPROF_PLUGIN=1`` wraps torch's
own functions, of a torch that is imported later within a second of a session, and when the next
window opens: data loaders, the
model's forward, backward, optimizers, saving, collectives. In come their calls; out go marks in the
domain ``phases``, while a window or a subscriber takes them. The range ``step N`` alone is always
open, from a step of the optimizer that was made last to its next. Never changes what a call does,
returns or raises. :func:`uninstall` puts back every function as it was. Nothing else in dynprof
uses it but ``dynamic_profile``.
"""

from __future__ import annotations

import os
import threading

from dynprof.marks.sinks import SINKS
from dynprof.plugin.patches import Patches
from dynprof.plugin.torch_phases import unwrap_all, wrap_all
from dynprof.runtime.forked_child import forget_in_child
from dynprof.runtime.modules import answer_import, whole_module
from dynprof.runtime.warnings_to_script import warn_script

_patches = Patches()
_lock = threading.RLock()
_TOO_EARLY = "marks nothing before torch is imported and the next window opens; import torch first"


def install() -> None:
    """Mark phases from now on; a second time it wraps what was imported since.

    ``import mstx_torch_plugin`` does the same from then on, unless there is a real one. Where the
    environment asks for the plugin, it comes before torch, and that is not worth a warning.
    """
    answer_import("mstx_torch_plugin", __name__)
    with _lock:
        SINKS.before_add = _wrap
        _wrap()
        if not _patches.on and os.environ.get("DYNPROF_PLUGIN") != "1":
            warn_script(f"dynprof.plugin {_TOO_EARLY}")


def _wrap() -> bool:
    """Wrap what torch has by now, if it is there and whole; return whether that is so."""
    if hasattr(whole_module("torch"), "autograd"):
        with _lock:
            wrap_all(_patches)
    return _patches.on


def uninstall() -> None:
    """Put everything back as it was."""
    with _lock:
        SINKS.before_add = None
        if _patches.on:
            unwrap_all(_patches)


def _unlock_in_child() -> None:
    """Have a lock that nobody holds: in a forked child, whoever held it is gone."""
    global _lock
    _lock = threading.RLock()


forget_in_child(_unlock_in_child)
install()

__all__ = ["install", "uninstall"]

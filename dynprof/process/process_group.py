"""Torch's default process group, where this process has initialised it itself.

A forked child finds its parent's as if it were its own: the parent's rank, and its connections.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any

_inherited: weakref.ref[Any] | None = None
"""The default group of the process that this one was forked from."""


def own_distributed() -> Any:
    """Return ``torch.distributed`` where it has a default group of this process's; else None."""
    distributed: Any = sys.modules.get("torch.distributed")
    # It may be being imported, initialised or destroyed.
    with contextlib.suppress(AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        if distributed and distributed.is_available() and distributed.is_initialized():
            is_own = _inherited is None or distributed.group.WORLD is not _inherited()
            return distributed if is_own else None
    return None


def leave_to_parent() -> None:
    """Take no group that is there now for this process's own; called in a child just forked."""
    global _inherited
    if distributed := own_distributed():
        _inherited = weakref.ref(distributed.group.WORLD)

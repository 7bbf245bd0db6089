"""Holds Python's garbage collector off for a moment in which no other thread may run."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_inside = 0
_was_on = True


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage while the body runs, whoever allocates; explicit collections do.

    Up to Python 3.11 any allocation may collect, also one of a C function that relies on keeping
    the GIL; what is called back then, or finalized, is Python, and lets other threads run.
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _inside, _was_on
    with _lock:
        if not _inside:
            _was_on = gc.isenabled()
            gc.disable()
        _inside += 1


def _leave() -> None:
    global _inside
    with _lock:
        _inside -= 1
        if not _inside and _was_on:
            gc.enable()


def _forget_in_child() -> None:
    """Put it on again in a forked child, where nobody is inside any more."""
    global _lock, _inside
    if _inside and _was_on:
        gc.enable()
    _lock, _inside = threading.Lock(), 0


os.register_at_fork(after_in_child=_forget_in_child)

"""Holds Python's garbage collector off for a moment in which no other thread may run."""

from __future__ import annotations

import contextlib
import gc
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_held_off: list[object] = []
"""By whom it is that found it on; no lock, which a signal handler would wait for."""


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage while the body runs, whoever allocates; explicit collections do.

    Up to Python 3.11 any allocation may collect, also one of a C function that relies on keeping
    the GIL; what is called back then, or finalized, is Python, and lets other threads run.

    Of two threads that are in here at once the one that found it on puts it on again, however the
    other leaves: a moment early for that one, but never to stay off.
    """
    holder, was_on = object(), gc.isenabled()
    try:  # a signal handler may raise at any line
        if was_on:
            _held_off.append(holder)
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()
            with contextlib.suppress(ValueError):
                _held_off.remove(holder)


def _forget_in_child() -> None:
    """Put it on again in a forked child, where nobody is inside any more."""
    if _held_off:
        gc.enable()
        _held_off.clear()


os.register_at_fork(after_in_child=_forget_in_child)

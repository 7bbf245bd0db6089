"""Whether a thread is amid a profile function of Python's, as torch sets one on all threads."""

from __future__ import annotations

import sys


def is_noting_a_call() -> bool:
    """Return whether this thread is amid a profile function, out of which a handler was called.

    What that runs in Python, a collector's callback say, or a ``__repr__``, lets signals be
    handled. Torch waits in ``stop`` until each thread has left it: for ever, where this one has
    called that itself, or waits for the one that has. Python calls no trace function there either,
    which tells; a debugger keeps its own.
    """
    if sys.gettrace():
        return False
    called: list[object] = []

    def note(*_: object) -> None:
        called.append(None)

    sys.settrace(note)
    try:
        _do_nothing()
    finally:
        sys.settrace(None)
    return not called


def _do_nothing() -> None:
    """Be a call."""

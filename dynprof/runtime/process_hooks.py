"""Functions that run in a forked child, and at the end of this process.

A forked child does not have the parent's other threads, but their locks. Packages register here how
they reset their state. Two modules have fork handlers of their own.
That of :mod:`dynprof.backends.torch.forks` also runs before and after a fork in the parent, and
must run last in the child. That of :mod:`dynprof.launch.injected` runs before dynprof is loaded.
The library for marks of C has one in C.

A child that multiprocessing has forked ends without calling ``atexit`` functions, at least up to
Python 3.13. In versions where it does, the functions for the end are called twice.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_in_child: list[Callable[[], object]] = []
FIRST = 100
"""Exit priority: before multiprocessing ends its own queues, pools and managers."""
_at_forked_end: set[tuple[int, Callable[[], object]]] = set()


def call_in_child(function: Callable[[], object]) -> None:
    """Call a function in each forked child, after the functions registered before it."""
    _in_child.append(function)


def _call_all_in_child() -> None:
    with contextlib.ExitStack() as each:  # runs all, even if one raises
        for function in reversed(_in_child):
            each.callback(function)


os.register_at_fork(after_in_child=_call_all_in_child)


def call_at_end(function: Callable[[], object]) -> None:
    """Call a function at the end of the process, before the functions registered so far."""
    atexit.unregister(function)
    atexit.register(function)
    call_at_forked_end(function)


def call_at_forked_end(function: Callable[[], object]) -> None:
    """Call a function, which atexit also has, at the end of a child of multiprocessing."""
    this = os.getpid(), function
    processes: Any = sys.modules.get("multiprocessing.process")  # loaded in each such child
    if processes and processes.parent_process() is not None and this not in _at_forked_end:
        from multiprocessing.util import Finalize

        _at_forked_end.add(this)
        Finalize(None, function, exitpriority=FIRST)

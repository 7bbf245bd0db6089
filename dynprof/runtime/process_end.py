"""Call functions at the end of this process, however it was started.

A child that multiprocessing has forked ends without calling ``atexit`` functions, at least up to
Python 3.13. In versions where it does, the functions are called twice.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = 100
"""Exit priority: before multiprocessing ends its own queues, pools and managers."""
_known: set[tuple[int, Callable[[], object]]] = set()


def call_at_end(function: Callable[[], object]) -> None:
    """Call a function at the end of the process, before the functions registered so far."""
    atexit.unregister(function)
    atexit.register(function)
    call_at_forked_end(function)


def call_at_forked_end(function: Callable[[], object]) -> None:
    """Call a function, which atexit also has, at the end of a child of multiprocessing."""
    this = os.getpid(), function
    processes: Any = sys.modules.get("multiprocessing.process")  # loaded in each such child
    if processes and processes.parent_process() is not None and this not in _known:
        from multiprocessing.util import Finalize

        _known.add(this)
        Finalize(None, function, exitpriority=FIRST)

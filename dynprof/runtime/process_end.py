"""What is done at the end of this process, whichever way it was begun.

A child that multiprocessing has forked ends without what ``atexit`` knows, up to Python 3.13 at
least; where it does call that, what is done then comes twice.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST = 100
"""Before the ends of multiprocessing's own queues, pools and managers."""
_known: set[tuple[int, Callable[[], object]]] = set()


def call_at_end(function: Callable[[], object]) -> None:
    """Have a function called then, before what has asked for that so far."""
    atexit.unregister(function)
    atexit.register(function)
    call_at_forked_end(function)


def call_at_forked_end(function: Callable[[], object]) -> None:
    """Have a function, which atexit knows as well, called at the end of such a child."""
    this = os.getpid(), function
    processes: Any = sys.modules.get("multiprocessing.process")  # each such child has it
    if processes and processes.parent_process() is not None and this not in _known:
        from multiprocessing.util import Finalize

        _known.add(this)
        Finalize(None, function, exitpriority=FIRST)

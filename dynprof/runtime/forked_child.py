"""Reset state in a forked child: the parent's other threads, and their locks, are not in it.

Rooms register their functions here. Two modules have handlers of their own.
That of :mod:`dynprof.backends.torch.forks` also runs before and after a fork in the parent, and
must run last in the child. That of :mod:`dynprof.launch.injected` runs before dynprof is loaded.
The library for marks of C has one in C.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_known: list[Callable[[], object]] = []


def forget_in_child(forget: Callable[[], object]) -> None:
    """Call a function in each forked child, after the functions registered before it."""
    _known.append(forget)


def _forget_all() -> None:
    with contextlib.ExitStack() as each:  # runs all, even if one raises
        for forget in reversed(_known):
            each.callback(forget)


os.register_at_fork(after_in_child=_forget_all)

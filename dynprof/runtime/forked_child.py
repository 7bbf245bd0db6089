"""What a forked child forgets: other threads of its parent, and what those held, are not in it.

Rooms register it here. Two have handlers of their own: :mod:`dynprof.backends.torch.forks` needs
the moments before and after a fork in the parent as well, and to be the last in the child;
:mod:`dynprof.launch.injected` runs before dynprof is loaded.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_known: list[Callable[[], object]] = []


def forget_in_child(forget: Callable[[], object]) -> None:
    """Have a function called in each forked child, after those that were registered before."""
    _known.append(forget)


def _forget_all() -> None:
    with contextlib.ExitStack() as each:  # all, whatever becomes of one
        for forget in reversed(_known):
            each.callback(forget)


os.register_at_fork(after_in_child=_forget_all)

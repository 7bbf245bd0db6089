"""Waiting for the next item of a queue, on every Python."""

from __future__ import annotations

import contextlib
import queue
from typing import TypeVar

Item = TypeVar("Item")


def next_of(items: queue.SimpleQueue[Item], patience_s: float) -> Item:
    """Return the next item, but never wait as the first look at a new queue.

    CPython 3.10 takes the free lock of a queue that was never empty before for an item, and then
    waits for what is left of the time: for ever, where a fraction of a microsecond is overdrawn.

    Raises:
        queue.Empty: There was none for so long.
    """
    with contextlib.suppress(queue.Empty):
        return items.get_nowait()
    return items.get(timeout=patience_s)

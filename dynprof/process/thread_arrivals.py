"""How often threads that C begins come into Python: 3.11 crashes who looks at them just then.

Such a thread makes its state without the GIL, and on Python 3.11 puts it into the list of all
before it is made. Torch walks over that list as it begins to trace calls, and as it ends.
"""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections import deque
from typing import TYPE_CHECKING

from dynprof.clock import time

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PER_S = 100.0
"""Of 14,600 a second 7 windows of 696 crashed, so of these perhaps one of 15,000."""
LOOKS = 5
LEAST_S = 1.0
"""Over a shorter time a few threads, begun together, look like many."""


def threads_of_c() -> int | None:
    """Return how many C has begun that came into Python; None where there is no need to know.

    They are those that have a state, but for those that ``threading`` gave a name, as it does
    unless the script gives one, which counts here, too. ``PyInterpreterState`` begins with the next
    interpreter, how many states were ever made, and the newest of them.
    """
    if sys.implementation.name != "cpython" or sys.version_info[:2] != (3, 11):
        return None
    interpreter = _returned("PyInterpreterState_Get")
    _, made, newest = (ctypes.c_uint64 * 3).from_address(interpreter)
    if newest != _returned("PyInterpreterState_ThreadHead", ctypes.c_void_p(interpreter)):
        return None  # one came amid that
    return int(made) - _named()


def _named() -> int:
    """Return how many threads have got a name of the kind ``Thread-1``."""
    counter = getattr(getattr(threading, "_counter", None), "__self__", None)
    found = re.fullmatch(r"count\((\d+)\)", repr(counter))
    return int(found[1]) - 1 if found else 0


def _returned(name: str, *arguments: ctypes.c_void_p) -> int:
    function = ctypes.pythonapi[name]
    function.restype = ctypes.c_void_p
    return int(function(*arguments))


class ThreadArrivals:
    """Looks now and then at how many have come.

    Args:
        come: Tells it.
        now_s: Tells the time.
    """

    def __init__(
        self,
        come: Callable[[], int | None] = threads_of_c,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._come, self._now_s = come, now_s
        self._looks: deque[tuple[int, float]] = deque(maxlen=LOOKS)

    def look(self) -> None:
        """Look, unless that was done within a second."""
        now_s = self._now_s()
        if self._looks and now_s - self._looks[-1][1] < LEAST_S:
            return
        come = self._come()
        if come is not None:
            self._looks.append((come, now_s))

    def too_many(self) -> str:
        """Say so where it is, by the last looks; empty where it is not, or not known."""
        self.look()
        looks = tuple(self._looks)
        if not looks or looks[-1][1] - looks[0][1] < LEAST_S:
            return ""
        per_s = (looks[-1][0] - looks[0][0]) / (looks[-1][1] - looks[0][1])
        if per_s < MOST_PER_S:
            return ""
        return (
            f"{per_s:,.0f} threads a second that C begins come into Python here, and where one "
            "does just as torch walks over all of them, Python 3.11 crashes (3.12 does not)"
        )


ARRIVALS = ThreadArrivals()
"""Those of this process."""

"""How often threads that C begins come into Python: 3.11 crashes who looks at them just then.

Such a thread makes its state without the GIL, and on Python 3.11 puts it into the list of all
before it is made. Torch walks over that list as it begins to trace calls, and as it ends.
"""

from __future__ import annotations

import ctypes
import operator
import sys
import time
from collections import deque
from itertools import repeat
from typing import TYPE_CHECKING, NamedTuple

from dynprof.process.profile_functions import WORD, audited, c_function

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_PER_S = 100.0
"""Beside 14,600 a second 7 windows of 696 crashed; beside so many it may be one of 15,000."""
LOOKS, LEAST_S = 5, 1.0
"""How many looks are kept, and how far apart they are at least: over a shorter time a few threads,
begun together, look like many."""
_HOLDS, _READINGS = 5, 10_000
"""A hold of the GIL takes so many readings, a millisecond or less."""


class ThreadArrivals:
    """Looks now and then at how many have come.

    Args:
        come: Tells how many have, whoever began them; None where there is no need to know.
        are_of_c: Tells whether some that C began are just coming.
        now_s: Tells the time.
    """

    def __init__(
        self,
        come: Callable[[], int | None],
        are_of_c: Callable[[], bool],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._come, self._are_of_c, self._now_s = come, are_of_c, now_s
        self._looks: deque[_Look] = deque(maxlen=LOOKS)

    def look(self) -> None:
        """Look, unless that was done within a second."""
        now_s, last = self._now_s(), self._looks[-1] if self._looks else None
        if last and now_s - last.at_s < LEAST_S:
            return
        come = self._come()
        if come is not None:
            are_many = bool(last and come - last.come >= MOST_PER_S * (now_s - last.at_s))
            self._looks.append(_Look(now_s, come, are_many and self._are_of_c()))

    def too_many(self) -> str:
        """Say so where it is, by the last looks; empty where it is not, or not known."""
        self.look()
        looks = tuple(self._looks)
        if not looks or looks[-1].at_s - looks[0].at_s < LEAST_S:
            return ""
        per_s = (looks[-1].come - looks[0].come) / (looks[-1].at_s - looks[0].at_s)
        if per_s < MOST_PER_S or not (any(look.of_c for look in looks) or self._are_of_c()):
            return ""
        return (
            f"threads that C begins keep coming into Python here ({per_s:,.0f} threads a second in "
            "all), and where one does just as torch walks over them, Python 3.11 crashes (3.12 "
            "does not)"
        )


class _Look(NamedTuple):
    at_s: float
    come: int
    of_c: bool


def states_made() -> int | None:
    """Return how many states of threads were ever made, on Python 3.11; None on others."""
    made = _number_made()
    return None if made is None else made.value


def are_made_without_the_gil() -> bool:
    """Return whether states are made while this thread has the GIL: only those of C's threads are.

    One call of C, within which no other thread gets the GIL, reads the number over and over.
    """
    made = _number_made()
    for _ in range(_HOLDS if made else 0):
        if len(set(map(operator.attrgetter("value"), repeat(made, _READINGS)))) > 1:
            return True
        time.sleep(0.001)  # those that wait for the GIL go on, and others come
    return False


def _number_made() -> ctypes.c_uint64 | None:
    """Return where the interpreter has it: after the next interpreter, before the newest state."""
    is_so = sys.implementation.name == "cpython" and sys.version_info[:2] == (3, 11)
    if not is_so or audited():  # whose hooks may refuse ctypes
        return None
    interpreter = c_function("PyInterpreterState_Get", 0)()
    newest = ctypes.c_void_p.from_address(interpreter + 2 * WORD).value
    if newest != c_function("PyInterpreterState_ThreadHead", 1)(interpreter):
        return None  # one came amid that
    return ctypes.c_uint64.from_address(interpreter + WORD)


ARRIVALS = ThreadArrivals(states_made, are_made_without_the_gil)
"""Those of this process."""

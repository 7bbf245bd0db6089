"""VizTracer's stacks, one a thread: what fits none of them makes it stop in the middle of a window.

A greenlet brings a stack of its own into the thread that it is switched to, and the calls that
return there are not those which VizTracer saw begin. It then ends its recording with a warning to
the job, which fails where warnings are errors. So the calls open at a switch are forgotten, and
what it says nonetheless is kept from the job and told in the manifest.
"""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any

from dynprof.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FILTER = ("ignore", re.compile("VizTracer: Unexpected function return"), RuntimeWarning, None, 0)
"""Put among the filters by hand: with :func:`warnings.filterwarnings` each warning that was shown
once would be shown once more."""


class ViztracerStacks:
    """Keeps VizTracer going over switches of the greenlets of the thread that opens a window.

    Args:
        forget: Has VizTracer forget the calls open on the calling thread.
    """

    def __init__(self, forget: Callable[[], object]) -> None:
        self._forget = forget
        self._switches, self._threads = 0, 0
        self._before: Any = None
        self._greenlet: Any = None

    def keep(self) -> None:
        """Follow the switches of the calling thread from now on."""
        filters: Any = warnings.filters
        if isinstance(filters, list) and _FILTER not in filters:  # the script may have put others
            filters.insert(0, _FILTER)
        greenlet: Any = sys.modules.get("greenlet")
        if hasattr(greenlet, "settrace"):
            self._greenlet, self._before = greenlet, _of_the_script(greenlet.gettrace())
            greenlet.settrace(self._switched)
            self._threads = _threads_with_greenlets()

    def count_anew(self) -> None:
        """Forget the switches so far."""
        self._switches = 0

    def let_go(self) -> None:
        """Follow them no more, unless the script follows them itself by now."""
        filters: Any = warnings.filters
        with contextlib.suppress(AttributeError, ValueError):
            filters.remove(_FILTER)
        greenlet, self._greenlet = self._greenlet, None
        if greenlet and greenlet.gettrace() == self._switched:
            greenlet.settrace(self._before)
        if greenlet:
            self._threads = max(self._threads, _threads_with_greenlets())

    def remarks(self) -> Iterator[str]:
        """Say what the calls of greenlets lack."""
        if self._switches:
            times = counted(self._switches, "time")
            yield f"greenlets were switched {times}; calls open at a switch are not there"
        if self._threads > 1:
            yield "greenlets of other threads are not followed; times of calls there may be wrong"

    def _switched(self, event: str, greenlets: Any) -> None:
        if self._greenlet:
            self._switches += 1
            self._forget()
        if self._before:
            self._before(event, greenlets)


def _of_the_script(function: Any) -> Any:
    """Look through what an earlier window has left, as it was closed on another thread."""
    while isinstance(stacks := getattr(function, "__self__", None), ViztracerStacks):
        function = stacks._before
    return function


def _threads_with_greenlets() -> int:
    """Return on how many threads greenlets have been used, this one included."""
    count: Any = getattr(sys.modules.get("greenlet._greenlet"), "get_total_main_greenlets", None)
    return int(count()) if count else 0

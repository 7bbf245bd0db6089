"""The number that one profiler of Python's calls has, from Python 3.12 on.

Who asks for it while another has it gets an exception, as ``cProfile`` does in a window of plain
Python. So a window lets go of it before somebody asks.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class ProfilerId:
    """Stands before ``sys.monitoring.use_tool_id`` while a window has the number."""

    def __init__(self) -> None:
        self._before: Any = None
        self._put: Any = None

    def lend(self, give_back: Callable[[], object]) -> None:
        """Have it given back as soon as somebody else asks for it.

        Args:
            give_back: Does so, at once.
        """
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:
            return
        before = monitoring.use_tool_id

        @functools.wraps(before)
        def use_tool_id(tool: Any, name: Any) -> Any:
            if tool == monitoring.PROFILER_ID and self._put is use_tool_id:
                give_back()
            return before(tool, name)

        self._before, self._put = before, use_tool_id
        monitoring.use_tool_id = use_tool_id

    def end(self) -> None:
        """Stand there no more, unless somebody has put something over it since."""
        put, self._put = self._put, None
        monitoring: Any = getattr(sys, "monitoring", None)
        if put and monitoring.use_tool_id is put:
            monitoring.use_tool_id = self._before

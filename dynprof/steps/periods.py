"""A period as the source of steps, for what has none: each some seconds long."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dynprof.process.threads import own_thread

if TYPE_CHECKING:
    from dynprof.clock import Clock
    from dynprof.steps.source import EndedSteps


class PeriodSteps:
    """A step ends every so many seconds, on a thread of its own.

    Args:
        seconds: How many.
        steps: Ends them.
        clock: Tells the time.
    """

    def __init__(self, seconds: float, steps: EndedSteps, clock: Clock) -> None:
        self._seconds, self._end_step, self._clock = seconds, steps.end_step, clock
        self._ended = threading.Event()
        self.name = f"a period of {seconds:g} s"
        own_thread(self._run, "dynprof-steps").start()

    def look(self) -> str:
        """Say nothing: time passes."""
        return ""

    def end(self) -> None:
        """End no more steps."""
        self._ended.set()

    def _run(self) -> None:
        due_s = self._clock.now_s() + self._seconds
        while not self._ended.wait(max(0.0, due_s - self._clock.now_s())):
            self._end_step()
            due_s = max(due_s + self._seconds, self._clock.now_s())  # none is made up for

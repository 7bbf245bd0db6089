"""What every source of steps is and is given; frameworks' callbacks and periods."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock


class Source(Protocol):
    """Gives steps.

    Attributes:
        name: What it is, as in "steps come from ...".
    """

    name: str

    def look(self) -> str:
        """Do what is due once a second; return why nothing comes of it yet, empty where it may."""

    def end(self) -> None:
        """Give none from now on, and put back what was changed; also in a forked child."""


class EndedSteps:
    """Ends steps for one source, and notices where somebody else does.

    Args:
        inbox: Counts them.
        on_others: Called with how many steps this source had ended, where the script turns out
            to end steps itself.

    Attributes:
        ended: How many it has ended.
        on_begin: Called with the number of each step as it begins, before what is due; may
            renumber it. None for nothing.
        next: The number of the step that it ends next.
    """

    def __init__(self, inbox: Inbox, on_others: Callable[[int], None]) -> None:
        self._inbox, self._on_others = inbox, on_others
        self.next = inbox.step
        self.ended = 0
        self.on_begin: Callable[[int], object] | None = None

    @property
    def is_only_source(self) -> bool:
        """Whether nobody else has ended a step since this source began."""
        return self._inbox.step == self.next

    def end_step(self) -> None:
        """End a step and begin the next, as ``dynprof.step()`` does."""
        inbox = self._inbox
        if inbox.step != self.next:
            self._on_others(self.ended)
            return
        self.ended += 1
        inbox.step = self.next = self.next + 1
        if self.on_begin:
            self.on_begin(self.next)
        if inbox.due:
            inbox.on_due()

    def renumber(self, step: int) -> None:
        """Go on from another number, at once: other threads may be ending steps."""
        self._inbox.step = self.next = step


class CallbackSteps:
    """A step ends where the framework's own count of steps grows by one.

    Where it jumps, as from one training to the next, the numbers go on from there.

    Args:
        framework: Whose callback it is.
        steps: Ends them.
        set_step: Gives the step that is running another number, and says why.
    """

    def __init__(
        self, framework: str, steps: EndedSteps, set_step: Callable[[int, str], None]
    ) -> None:
        self.framework, self.name = framework, f"{framework}'s callback"
        self._steps, self._set_step = steps, set_step

    def look(self) -> str:
        """Say what may be missing: the callback comes by itself."""
        return f"{self.name} has told of none"

    def end(self) -> None:
        """End no more steps; nothing was changed."""

    def reached(self, step: int) -> None:
        """Take the framework's count of steps: the number of the one that is running."""
        ahead = step - self._steps.next
        if ahead == 1:
            self._steps.end_step()
        elif ahead:
            self.begin(step)

    def begin(self, step: int) -> None:
        """Go on from the framework's number, without ending a step."""
        if step != self._steps.next:
            self._set_step(step, f"{self.framework} is at step {step}, not at {self._steps.next}")


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

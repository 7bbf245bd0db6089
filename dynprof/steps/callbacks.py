"""A framework's callback as the source of steps: it tells how many the framework has made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.steps.source import EndedSteps


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

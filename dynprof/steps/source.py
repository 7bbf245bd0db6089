"""What every source of steps is, and what it is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.requests.inbox import Inbox


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
        given: How many it has ended.
        on_begin: Called with the number of each step as it begins, before what is due; may
            renumber it. None for nothing.
        next: The number of the step that it ends next.
    """

    def __init__(self, inbox: Inbox, on_others: Callable[[int], None]) -> None:
        self._inbox, self._on_others = inbox, on_others
        self.next = inbox.step
        self.given = 0
        self.on_begin: Callable[[int], object] | None = None

    @property
    def alone(self) -> bool:
        """Whether nobody else has ended a step since this source began."""
        return self._inbox.step == self.next

    def end_step(self) -> None:
        """End a step and begin the next, as ``dynprof.step()`` does."""
        inbox = self._inbox
        if inbox.step != self.next:
            self._on_others(self.given)
            return
        self.given += 1
        inbox.step = self.next = self.next + 1
        if self.on_begin:
            self.on_begin(self.next)
        if inbox.due:
            inbox.on_due()

    def renumber(self, step: int) -> None:
        """Go on from another number, at once: other threads may be ending steps."""
        self._inbox.step = self.next = step

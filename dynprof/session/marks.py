"""Where the steps of this rank stand in the collectives of its process group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.coordination.messages import Mark

if TYPE_CHECKING:
    from dynprof.coordination.job_group import JobGroup
    from dynprof.requests.inbox import Inbox


class Marks:
    """Notes a mark as a step ends, where somebody has asked for one.

    Args:
        inbox: Knows the step.

    Attributes:
        newest: The newest mark; None where none is known.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self.newest: Mark | None = None
        self._boundary: Mark | None = None  # the newest that was noted
        self._once_more = False  # the next one is, to tell what a step takes

    def forget(self) -> None:
        """Know of none: the steps have other numbers now."""
        self.newest = None

    def step_ended(self, group: JobGroup) -> None:
        """Note where the group stands; on the thread that trains, amid two steps."""
        if (begun := group.collectives()) is None:
            return
        here = Mark(self._inbox.step, begun.number, is_exact=begun.is_exact)
        before, self._boundary = self._boundary, here
        if before and before.step == here.step - 1:
            self._once_more = False
            self.newest = replace(here, of_step=here.collectives - before.collectives)
        else:  # once: a script may count its steps by eights
            self._once_more = not self._once_more
            if self._once_more:
                self._inbox.knock()

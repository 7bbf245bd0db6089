"""Step numbers of a process whose first steps were not counted: it takes over those of rank 0.

dynprof was attached to it, or found the function that ends steps while the script ran.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

KEPT = 256  # Steps; ranks that step together are a few apart, and a proposal may take seconds.
SENT = 16  # The leader sends this many of the newest steps.
MIN_SHARED = 2  # A single step with the same count may be chance.
FEW = 32  # After this many steps without a collective, the ranks do not step together.


class StepNumbers:
    """Maps steps between ranks by the number of collectives that had begun at their start.

    Ranks that step together have begun the same number, so it identifies a step on all of them.

    Args:
        collectives: Returns the number of collectives; None where it is unknown.
        may_renumber: Returns whether no window is open.
        renumber: Gives the running step another number.
        may_be_unknown: Whether this process keeps its own numbers if its steps have no collectives.
    """

    def __init__(
        self,
        collectives: Callable[[], int | None],
        may_renumber: Callable[[], bool],
        renumber: Callable[[int], object],
        *,
        may_be_unknown: bool = False,
    ) -> None:
        self._may_be_unknown = may_be_unknown
        self._collectives = collectives
        self._may_renumber, self._renumber = may_renumber, renumber
        self._lock = threading.RLock()
        self._begun: deque[tuple[int, int]] = deque(maxlen=KEPT)  # steps and counts
        self._count: int | None = None
        self._shift = self._seen = 0

    @property
    def is_behind(self) -> bool:
        """Whether the next step takes over its number on rank 0."""
        with self._lock:
            return bool(self._shift)

    def begin_step(self, step: int) -> None:
        """Note that a step begins; called on the training thread."""
        with self._lock:
            self._seen += 1
            before, self._count = self._count, self._collectives()
            if before is None or self._count is None or self._count < before:
                self._begun.clear()  # no process group, or another one
            elif self._count > before:
                self._begun.append((step, self._count))
            if self._shift and self._may_renumber():
                shifted = [(one + self._shift, count) for one, count in self._begun]
                count = self._count
                self._renumber(step + self._shift)  # which calls reset()
                self._begun.extend(shifted)
                self._count, self._shift = count, 0

    def reset(self) -> None:
        """Forget all steps; the next one has another number."""
        with self._lock:
            self._begun.clear()
            self._count, self._shift = None, 0

    def newest(self) -> tuple[tuple[int, int], ...]:
        """Return the newest steps with their counts."""
        with self._lock:
            return tuple(self._begun)[-SENT:]

    def follow(self, leaders: Collection[tuple[int, int]]) -> bool:
        """Take over rank 0's numbers from the next step on.

        Returns:
            False if they are unknown and have to be known.
        """
        with self._lock:
            own, rank_0 = ({count: step for step, count in of} for of in (self._begun, leaders))
            shared = own.keys() & rank_0.keys()
            first, last = min(shared, default=0), max(shared, default=0)
            between = {count for count in {**own, **rank_0} if first <= count <= last}
            shifts = {rank_0[count] - own[count] for count in shared}
            is_known = len(shared) >= MIN_SHARED and len(shifts) == 1 and between == shared
            self._shift = shifts.pop() if is_known else 0
            return is_known or (self._may_be_unknown and self._seen > FEW and not self._begun)

"""Tells the log that a step takes too long, where the main thread is, and when it has ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from dynprof.journal.status import HEARTBEAT_S, patience_s
from dynprof.process.thread_place import place_of

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.clock import Clock
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.windows.cost_account import CostAccount

LONG_S = 30.0
"""A step that takes longer is explained in the status, though it be the first, or none unusual."""


class Standstill:
    """Looks at the step counter once a second, and warns once for each step that takes too long.

    Args:
        root: The directory that is watched.
        inbox: Counts the steps.
        costs: Knows how long they take.
        journal: The log.
        clock: Tells the time.
    """

    def __init__(
        self, root: Path, inbox: Inbox, costs: CostAccount, journal: Journal, clock: Clock
    ) -> None:
        self._root, self._inbox, self._costs = root, inbox, costs
        self._journal, self._clock = journal, clock
        self._step, self._moved_s = inbox.step, clock.now_s()
        self._looked_s = self._moved_s
        self._patience_s = patience_s(None, None)
        self._told = False

    def look(self) -> None:
        """Warn where the step takes longer than the status allows, and where that has ended.

        What keeps all threads of the process, and so this one, is told afterwards. No step has to
        end once the process itself is ending.
        """
        if self._journal.remembered.get("ending"):
            return
        now_s, step = self._clock.now_s(), self._inbox.step
        if (gap_s := now_s - self._looked_s) >= 3 * HEARTBEAT_S:
            self._journal.warning(
                f"nothing was written for {gap_s:,.0f} s: the process was stopped, a call kept "
                "Python's lock, or the disk did not answer"
            )
        self._looked_s = now_s
        still_s, before_s = now_s - self._moved_s, self._patience_s
        self._patience_s = patience_s(self._costs.longest_s(), self._costs.step_ms())
        if step != self._step:
            if self._told or still_s > before_s:
                self._journal.warning(f"moves again: step {self._step} took {still_s:,.0f} s")
            if self._journal.remembered.get("stands_in"):
                self._journal.remember(stands_in="")
            self._step, self._moved_s, self._told = step, now_s, False
        elif still_s > min(LONG_S, self._patience_s):
            where = place_of(threading.main_thread().ident or 0)
            self._journal.remember(stands_in=where)
            if still_s > self._patience_s and not self._told:
                self._told = True
                self._warn(still_s, where or "no Python function")

    def _warn(self, still_s: float, where: str) -> None:
        self._journal.warning(
            f"stuck: step {self._step} has taken {still_s:,.0f} s, more than the "
            f"{self._patience_s:,.0f} s that a step may take here; the main thread is in {where}; "
            f"compare the ranks: dynprof status {self._root}, dynprof log {self._root}"
        )

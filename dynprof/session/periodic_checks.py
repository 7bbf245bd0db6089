"""The checks of a session, once a second and once at its start, such as for a stuck step."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from dynprof.backends.torch.flight_recorder import unfinished_collectives
from dynprof.captures.left_behind import left_behind
from dynprof.journal.memory_growth import MemoryWatch
from dynprof.journal.stack_dump import StackDumps
from dynprof.journal.status import HEARTBEAT_S, LONG_STEP_S, MAX_STEP_S, stuck_after_s
from dynprof.journal.status_file import remove_stale
from dynprof.marks.sinks import SINKS
from dynprof.runtime.destination import destination
from dynprof.runtime.layout import free_disk_mb
from dynprof.runtime.stacks import place_of
from dynprof.runtime.stale_folders import OLD_S, remove_leftovers, staging_dirs
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.captures.analysis_start import Analyses
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.steps.step_sources import StepSources
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.process_context import ProcessContext

LOOK_S = 0.05
"""Mean seconds between two looks at the main thread's stack in a step that may be stuck."""
MOTION_S = 20.0
"""Seconds of looks that tell whether a stack stands still."""
CHANGES = 4
"""Changes of the stack in that time from which on it moves.

An evaluation on a device is outside the call that waits for it in some looks of hundreds. A call
that polls, such as a data loader's each 5 s, is outside it in none, by chance in one: two changes.
"""


class PeriodicChecks:
    """Runs the checks; each may fail without affecting the others.

    Args:
        process: This process.
        inbox: Has the waiting request.
        journal: The log.
        boundary: Keeps failures from the other checks.
        costs: The step times of the job.
        analyses: The analyses that were started.
        steps: The sources of steps.

    Attributes:
        memory: Reads the memory of this process.
    """

    def __init__(
        self,
        process: ProcessContext,
        inbox: Inbox,
        journal: Journal,
        boundary: ErrorBoundary,
        costs: CostAccount,
        analyses: Analyses,
        steps: StepSources,
    ) -> None:
        self._process, self._inbox, self._costs = process, inbox, costs
        self._journal, self._boundary, self._analyses = journal, boundary, analyses
        self._steps = steps
        self._stacks = StackDumps(
            lambda: process.layout,
            lambda: inbox.step,
            process.clock.wall_s,
            journal,
            boundary,
            unfinished_collectives,
        )
        self.memory = MemoryWatch(
            lambda: process.layout,
            inbox,
            process.clock,
            journal.info,
            journal.warning,
            boundary,
            process.memory_mb,
        )
        motion = StackMotion(process.clock, process.main_stack)
        self._stuck_step = StuckStepCheck(
            process.layout.root, inbox, costs, journal, process.clock, self._stacks, motion
        )
        self._reported: set[Path] = set()  # captures that were left behind
        self._marks_torch = False

    def tick(self) -> None:
        """Run the checks of each second, on the journal's thread."""
        self._boundary.attempt("the periodic checks", self._tick)

    def _tick(self) -> None:
        learn_rank(self._process, self._journal)
        self._boundary.attempt("finding the source of steps", self._steps.check)
        self._boundary.attempt("looking for torch", self._look_for_torch)
        self._boundary.attempt("analysis", self._analyses.update)
        self._costs.sample()
        self._boundary.attempt("looking for a stuck step", self._stuck_step.check)
        self._boundary.attempt("writing the stacks", self._stacks.answer_request)
        self._boundary.attempt("looking at the next rank", self._stacks.look_at_neighbour)
        self._boundary.attempt(
            "counting the cost", lambda: self._costs.complete_pending(final=False)
        )
        self._boundary.attempt("looking at the disk", self._look_at_disk)
        self._boundary.attempt("reading the memory", self.memory.check)

    def _look_for_torch(self) -> None:
        """Let the plugin, if there is one, mark a torch that was imported since."""
        if SINKS.before_add and not self._marks_torch:
            self._marks_torch = SINKS.before_add()

    def _look_at_disk(self) -> None:
        if waiting := self._inbox.waiting:
            config = waiting.config
            place = destination(
                self._process.layout, config.prof_dir, config.storage.scratch_dir
            ).staging_dir
            self._inbox.free_disk_mb = free_disk_mb(place)

    def clear_up(self, ended: threading.Event) -> None:
        """Remove files of killed processes, now and again when their captures are old.

        Args:
            ended: Set when the session ends.
        """

        def clear_up() -> None:
            self._clear_up_once()
            if not ended.wait(OLD_S):
                self._clear_up_once()

        if os.environ.get("LOCAL_RANK", "0") == "0":  # one for each machine
            own_thread(clear_up, "dynprof-clear").start()

    def _clear_up_once(self) -> None:
        layout = self._process.layout
        removed: list[Path] = []
        places = (layout.root, *layout.prof_dirs, *staging_dirs(layout.root))
        self._boundary.attempt(
            "clearing up", lambda: removed.extend(remove_leftovers(places, layout.host))
        )
        wall_s = self._process.clock.wall_s()
        self._boundary.attempt("clearing up", lambda: remove_stale(layout, wall_s))
        for path in removed:
            self._journal.info(f"removed {path}, which a killed process left unfinished")
        self._boundary.attempt("naming captures left behind", self._name_left)

    def _name_left(self) -> None:
        """Log once which captures no process sends any more, and the command that sends them.

        A user has to run it: this job may have no permission to send another job's files.
        """
        layout = self._process.layout
        left = left_behind(layout.root, layout.prof_dirs)
        news = [one for one in left if one.path not in self._reported]
        self._reported |= {one.path for one in news}
        if news:  # a job of many ranks may have left thousands
            text = f"the capture in {news[0].folder} was never sent on; to send it, run"
            more = f"; the same for {len(news) - 1:,} more, which dynprof status names"
            self._journal.warning(f"{text} {news[0].command}{more if len(news) > 1 else ''}")


def learn_rank(process: ProcessContext, journal: Journal) -> None:
    """Look up the rank while it is unknown; once known, use it from then on."""
    if process.learn_rank():
        journal.move(process.layout)
        rank = process.rank
        text = f"this is rank {rank.number} of {rank.world_size} ({rank.source})"
        journal.info(f"{text}; it was not known before")


class StackMotion:
    """Looks whether the main thread's stack changes, on a thread of its own while that matters.

    Args:
        clock: The clock.
        stack: Returns where the main thread is, for comparison.
    """

    def __init__(self, clock: Clock, stack: Callable[[], object]) -> None:
        self._clock, self._stack = clock, stack
        self._before: object = None
        self._changes: deque[float] = deque(maxlen=CHANGES)
        self._thread: threading.Thread | None = None
        self._until_s = 0.0

    def keep_looking(self) -> None:
        """Look for the next seconds; the caller repeats it each second."""
        self._until_s = time.monotonic() + 3.0
        if self._thread is None or not self._thread.is_alive():
            self._before = None
            self._thread = own_thread(self._run, "dynprof-motion")
            self._thread.start()

    def _run(self) -> None:
        while time.monotonic() < self._until_s:
            self.look()
            time.sleep(LOOK_S * random.uniform(0.5, 1.5))  # noqa: S311 - not in step with the job

    def look(self) -> None:
        """Compare the stack with that of the look before."""
        before, self._before = self._before, self._stack()
        if before not in (None, self._before):
            self._changes.append(self._clock.now_s())

    def moves(self) -> bool:
        """Return whether the stack has changed often enough."""
        is_full = len(self._changes) == CHANGES
        return is_full and self._clock.now_s() - self._changes[0] < MOTION_S


class StuckStepCheck:
    """Checks the step counter once a second, and warns once of each step that takes too long.

    A step in which the main thread's stack changes, such as an evaluation, is only long.

    Args:
        root: The watched directory.
        inbox: Counts the steps.
        costs: Has the step times.
        journal: The log.
        clock: The clock.
        stacks: Writes the stacks of a step that takes too long.
        motion: Tells whether the main thread's stack changes.
    """

    def __init__(
        self,
        root: Path,
        inbox: Inbox,
        costs: CostAccount,
        journal: Journal,
        clock: Clock,
        stacks: StackDumps,
        motion: StackMotion,
    ) -> None:
        self._root, self._inbox, self._costs = root, inbox, costs
        self._journal, self._clock, self._stacks = journal, clock, stacks
        self._motion = motion
        self._step, self._moved_s = inbox.step, clock.now_s()
        self._looked_s = self._moved_s
        self._patience_s = stuck_after_s(None, None)
        self._is_stuck = self._is_long = False

    def check(self) -> None:
        """Warn when a step takes longer than the status allows, and when it ends.

        A halt of all threads, including this one, is logged afterwards. While the process ends, no
        step has to end.
        """
        if self._journal.status_fields.get("ending"):
            return
        now_s, step = self._clock.now_s(), self._inbox.step
        gap_s, self._looked_s = now_s - self._looked_s, now_s
        if gap_s >= 3 * HEARTBEAT_S:
            self._note_silence(gap_s)
        still_s, before_s = now_s - self._moved_s, self._patience_s
        self._patience_s = stuck_after_s(self._costs.longest_s(), self._costs.step_ms())
        if step != self._step:
            was_blind = gap_s >= 3 * HEARTBEAT_S  # steps have ended right before and after it
            named = f"about step {step}" if was_blind else f"step {self._step}"
            self._note_end(named, still_s, before_s)
            self._step, self._moved_s = step, now_s
            self._is_stuck = self._is_long = False
            return
        if still_s > self._patience_s - MOTION_S:
            self._motion.keep_looking()
            self._journal.set_status(moves=self._motion.moves())
        if still_s > min(LONG_STEP_S, self._patience_s):
            where = place_of(threading.main_thread().ident or 0)
            self._journal.set_status(stuck_at=where)
            if still_s > self._patience_s:
                self._note_excess(still_s, where or "no Python function")

    def _note_silence(self, gap_s: float) -> None:
        """Log that this thread did not run; a warning if no step may take as long."""
        say = self._journal.warning if gap_s > self._patience_s else self._journal.info
        say(
            f"nothing was written for {gap_s:,.0f} s: the process was stopped, a call kept "
            "Python's lock, or the disk did not answer"
        )

    def _note_end(self, named: str, still_s: float, before_s: float) -> None:
        """Log the end of a step that took too long, and clear the status."""
        if self._is_stuck or (still_s > before_s and not self._is_long):
            self._journal.warning(f"moves again: {named} took {still_s:,.0f} s")
        elif self._is_long:
            self._journal.info(f"the long {named} took {still_s:,.0f} s")
        if self._journal.status_fields.get("stuck_at"):
            self._journal.set_status(stuck_at="")
        if self._journal.status_fields.get("moves"):
            self._journal.set_status(moves=False)

    def _note_excess(self, still_s: float, where: str) -> None:
        """Log once that a step is long, and once that it stands still."""
        limit = f"limit {self._patience_s:,.0f} s"
        takes = f"step {self._step} has taken {still_s:,.0f} s ({limit})"
        if self._motion.moves() and still_s <= MAX_STEP_S:
            if not self._is_long:
                self._journal.info(f"long: {takes}; the main thread moves, now in {where}")
            self._is_long = True
        elif not self._is_stuck:
            self._is_stuck = True
            self._journal.warning(
                f"stuck: {takes}; the main thread is in {where}; {self._stacks.take()}; "
                f"to compare the ranks, run dynprof dump {self._root}"
            )

"""The checks of a session, once a second and once at its start, such as for a stuck step."""

from __future__ import annotations

import os
import select
import signal
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.captures.deliveries import left_behind
from dynprof.errors import CaptureError
from dynprof.journal.memory_growth import MemoryWatch
from dynprof.journal.stack_dump import StackDumps, is_here, next_on_machine
from dynprof.journal.status import (
    HEARTBEAT_S,
    LONG_STEP_S,
    MAX_STEP_S,
    Status,
    load_status,
    remove_stale,
    stuck_after_s,
)
from dynprof.marks.sinks import SINKS
from dynprof.runtime.destination import destination
from dynprof.runtime.layout import free_disk_mb
from dynprof.runtime.stacks import place_of
from dynprof.runtime.stale_folders import OLD_S, remove_leftovers, staging_dirs
from dynprof.runtime.threads import own_thread, threads_of_others

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from dynprof.captures.analysis_start import Analyses
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.runtime.clock import Clock
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.runtime.layout import Layout
    from dynprof.steps.sources import StepSources
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.process_context import ProcessContext

SAMPLES = 20
"""Newest samples of the training thread, one a second, that tell whether it runs."""
MIN_RUNNING_SAMPLES = 8
"""Samples among them by which it must have run Python code; a data loader polls every 5 s."""
MIN_BUSY_RUNS, BUSY_SHARE = 3, 0.8
"""Samples by which it must have run if it uses this share of a CPU: calls in C may take seconds."""
MIN_CPU_SHARE = 0.01
"""Share of one CPU that it must use; a loop that sleeps 10 ms at a time used 0.006."""


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
            inbox,
            process.clock.wall_s,
            journal,
            boundary,
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
        progress = ProgressDetector(process.clock, lambda: process.look_at(inbox.training_thread))
        self._stuck_step = StuckStepCheck(
            process.layout.root,
            inbox,
            costs,
            journal,
            process.clock,
            self._stacks,
            progress,
            lambda: computing_first_rank(process.layout, process.clock.wall_s()),
        )
        self._next_rank = NextRankCheck(process, inbox, journal, boundary)
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
        self._boundary.attempt("looking at the next rank", self._stacks.look_at_next_rank)
        self._boundary.attempt("waiting for the next rank", self._next_rank.check)
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


def computing_first_rank(layout: Layout, now_s: float) -> str:
    """Return the name of rank 0 if it computes in a long step, and this is another rank.

    Often rank 0 alone evaluates or saves, while the others wait for it in a barrier.
    """
    if layout.rank != 0:
        with suppress(CaptureError, OSError):
            first = load_status(replace(layout, rank=0).status)
            if first.training_thread_runs and first.writes(now_s):
                return first.named
    return ""


class ProgressDetector:
    """Tells a long step that makes progress, such as an evaluation, from a hang.

    A thread that waits in C runs no Python code. One that polls runs some and hardly computes.

    Args:
        clock: The clock.
        look: Returns whether the training thread has run Python code since the last call, and its
            CPU time in seconds.
    """

    def __init__(self, clock: Clock, look: Callable[[], tuple[bool, float]]) -> None:
        self._clock, self._look = clock, look
        self._samples: deque[tuple[float, bool, float]] = deque(maxlen=SAMPLES + 1)

    def look(self) -> bool:
        """Look once a second while a step is long; return whether the training thread runs."""
        self._samples.append((self._clock.now_s(), *self._look()))
        (from_s, _, first_s), (to_s, _, last_s) = self._samples[0], self._samples[-1]
        runs = sum(has_run for _, has_run, _ in list(self._samples)[1:])
        used_s, span_s = last_s - first_s, to_s - from_s
        if used_s >= BUSY_SHARE * span_s:
            return runs >= min(MIN_BUSY_RUNS, MIN_RUNNING_SAMPLES)
        return runs >= MIN_RUNNING_SAMPLES and used_s >= MIN_CPU_SHARE * span_s

    def forget(self) -> None:
        """Begin again: another step runs."""
        self._samples.clear()


class StuckStepCheck:
    """Checks the step counter once a second, and warns once of each step that takes too long.

    A step in which the training thread runs, such as an evaluation, is only long, and so is one in
    which it waits for such a rank 0.

    Args:
        root: The watched directory.
        inbox: Counts the steps.
        costs: Has the step times.
        journal: The log.
        clock: The clock.
        stacks: Writes the stacks of a step that takes too long.
        progress: Tells whether the training thread runs.
        first: Returns the name of rank 0 if it computes in a long step, else an empty string.
    """

    def __init__(
        self,
        root: Path,
        inbox: Inbox,
        costs: CostAccount,
        journal: Journal,
        clock: Clock,
        stacks: StackDumps,
        progress: ProgressDetector,
        first: Callable[[], str],
    ) -> None:
        self._root, self._inbox, self._costs = root, inbox, costs
        self._journal, self._clock, self._stacks = journal, clock, stacks
        self._progress, self._first = progress, first
        self._step, self._moved_s = inbox.step, clock.now_s()
        self._looked_s = self._moved_s
        self._patience_s = stuck_after_s(None, None)
        self._is_stuck = self._is_long = self._runs = False
        self._waits_for, self._asked_s = "", float("-inf")

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
            if step == self._step:
                self._moved_s += gap_s  # it is not the step that took this time
        still_s, before_s = now_s - self._moved_s, self._patience_s
        self._patience_s = stuck_after_s(self._costs.longest_s(), self._costs.step_ms())
        if step != self._step:
            self._note_end(step, still_s, before_s, gap_s)
            self._begin_step(step, now_s)
            return
        if still_s > self._patience_s - SAMPLES:
            self._runs = self._progress.look()
            self._journal.set_status(training_thread_runs=self._runs)
        if still_s > min(LONG_STEP_S, self._patience_s):
            where = place_of(self._inbox.training_thread.ident or 0)
            self._journal.set_status(stuck_at=where)
            if still_s > self._patience_s:
                self._note_excess(now_s, still_s, where or "no Python function")

    def _begin_step(self, step: int, now_s: float) -> None:
        self._progress.forget()
        self._step, self._moved_s = step, now_s
        self._is_stuck = self._is_long = self._runs = False
        self._waits_for, self._asked_s = "", float("-inf")
        known = self._inbox.thread
        if not (known and known.is_alive()) and len(threads_of_others()) > 1:
            self._inbox.wake()  # a turn tells which thread ends the steps

    def _note_silence(self, gap_s: float) -> None:
        """Log that this thread did not run; a warning if no step may take as long."""
        say = self._journal.warning if gap_s > self._patience_s else self._journal.info
        say(
            f"nothing was written for {gap_s:,.0f} s: the process was stopped, a call held "
            "the GIL, or the disk did not answer"
        )

    def _note_end(self, step: int, still_s: float, before_s: float, gap_s: float) -> None:
        """Log the end of a step that took too long, and clear the status."""
        named = f"step {self._step}"
        if gap_s >= 3 * HEARTBEAT_S:  # steps have ended right before and after it
            named, still_s = f"about step {step}", min(still_s, self._costs.stood_s)
        if self._is_stuck or (still_s > before_s and not self._is_long):
            self._journal.warning(f"no longer stuck: {named} ended after {still_s:,.0f} s")
        elif self._is_long:
            self._journal.info(f"the long {named} took {still_s:,.0f} s")
        if self._journal.status_fields.get("stuck_at"):
            self._journal.set_status(stuck_at="")
        if self._journal.status_fields.get("training_thread_runs"):
            self._journal.set_status(training_thread_runs=False)
        if self._journal.status_fields.get("waits_for"):
            self._journal.set_status(waits_for="")

    def _note_excess(self, now_s: float, still_s: float, where: str) -> None:
        """Log once that a step is long, and once that it hangs."""
        limit = f"limit {self._patience_s:,.0f} s"
        takes = f"step {self._step} has taken {still_s:,.0f} s ({limit})"
        if now_s - self._asked_s >= HEARTBEAT_S:
            self._asked_s = now_s
            self._waits_for = "" if self._runs else self._first()
            self._journal.set_status(waits_for=self._waits_for)
        if (self._runs or self._waits_for) and still_s <= MAX_STEP_S:
            if not self._is_long:
                how = "the training thread runs, now in"
                if self._waits_for:
                    how = f"{self._waits_for} computes, and the training thread waits in"
                self._journal.info(f"long: {takes}; {how} {where}")
            self._is_long = True
        elif not self._is_stuck:
            self._is_stuck = True
            text = (
                f"stuck: {takes}; the training thread is in {where}; {self._stacks.take()}; "
                f"to compare the ranks, run dynprof dump {self._root}"
            )
            self._journal.warning(text)
            self._journal.events.report("stuck", text, step=self._step)


class NextRankCheck:
    """Logs the death of the next rank of this machine when it dies.

    A launcher ends the other ranks a moment later. Then no file tells which rank was the first.

    Args:
        process: This process.
        inbox: Counts the steps.
        journal: The log.
        boundary: Keeps failures from other work.
    """

    def __init__(
        self, process: ProcessContext, inbox: Inbox, journal: Journal, boundary: ErrorBoundary
    ) -> None:
        self._process, self._inbox, self._journal = process, inbox, journal
        self._boundary = boundary
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Start to wait for the next rank, once it runs."""
        layout = self._process.layout
        number = next_on_machine(layout.rank)
        if number is None or (self._thread is not None and self._thread.is_alive()):
            return
        with suppress(CaptureError, OSError):
            status = load_status(replace(layout, rank=number).status)
            if status.state != "stopped" and is_here(layout.root, status):
                process = os.pidfd_open(status.pid)
                waits = own_thread(self._wait_guarded, "dynprof-next-rank", process, status)
                self._thread = waits
                waits.start()

    def _wait_guarded(self, process: int, status: Status) -> None:
        self._boundary.attempt("waiting for the next rank", lambda: self._wait(process, status))

    def _wait(self, process: int, status: Status) -> None:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        try:
            poll.poll()
            how = how_it_ended(status.pid)
        finally:
            os.close(process)
        last = load_status(replace(self._process.layout, rank=status.rank).status)
        if last.pid == status.pid and last.state != "stopped":
            self._log(last, how)

    def _log(self, last: Status, how: str) -> None:
        died = f"{last.named} (process {last.pid}) died{how}, in about step {self._inbox.step:,}"
        self._journal.set_status(death=died, death_at=self._process.clock.wall_s())
        self._journal.warning(f"{died}; ranks that end after it may have ended because of it")


def how_it_ended(pid: int) -> str:
    """Return how a process has ended, for ``died``; empty if its parent knows already."""
    with suppress(OSError, ValueError, IndexError):
        code = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[-1])
        if number := code & 0x7F:
            return f" of {signal.Signals(number).name}"
        return f" with exit code {code >> 8}"
    return ""

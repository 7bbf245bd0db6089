"""The session of a process: it wires watcher, inbox, training thread and exporter together.

It connects three paths, each in one direction:

- a save: ``Watcher`` -> :meth:`Session.handle` -> ``Agreements``, where ranks agree ->
  ``EditHandler`` -> ``Inbox``, or a refusal;
- a step: ``step()`` finds the inbox due -> :meth:`Session._turn` -> ``Loop`` opens, moves or
  closes a window, through its ``WindowDriver`` -> ``Exporter``;
- a saved capture: ``Exporter`` -> ``SavedCaptures``, which counts its cost, begins its analysis and
  writes to the ``Journal``.

The first runs on the watcher's thread, the second on the training thread, the third on the
exporter's thread. The journal's thread calls ``PeriodicChecks`` once a second.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.captures.analysis_start import Analyses
from dynprof.captures.deliveries import Deliveries
from dynprof.captures.exporter import Exporter
from dynprof.config import Source
from dynprof.journal.history import StepHistory
from dynprof.journal.journal import Journal
from dynprof.journal.status import LEADS, Status
from dynprof.ranks.agreements import Agreements
from dynprof.ranks.job_windows import JobWindows
from dynprof.ranks.member import Member
from dynprof.requests.config_watcher import Watcher, WatchMode
from dynprof.requests.edit_detection import GONE, Repetition, Unread
from dynprof.requests.inbox import Inbox
from dynprof.requests.request import Edit
from dynprof.runtime.error_boundary import ErrorBoundary
from dynprof.runtime.file_system import file_mount_problem
from dynprof.runtime.layout import pid_namespace
from dynprof.runtime.standard_streams import say
from dynprof.session.edit_handler import EditHandler
from dynprof.session.periodic_checks import PeriodicChecks
from dynprof.session.saved_captures import SavedCaptures
from dynprof.steps.base import StepOption
from dynprof.steps.sources import StepSources
from dynprof.steps.step_numbers import StepNumbers
from dynprof.version import __version__
from dynprof.watch.slow_steps import SlowSteps
from dynprof.windows.cost_account import CostAccount
from dynprof.windows.loop import Loop

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from dynprof.captures.exporter import Attempt
    from dynprof.requests.capabilities import Capabilities
    from dynprof.windows.process_context import ProcessContext

CLOSE_WAIT_S = 3.0
"""Longest wait of the end for the training thread's next step, if it has a window open."""
QUIET_S = 1.0
"""Wait for a capture that is being saved before a message says so."""
RECORD_S = 2.0
"""Longest wait of the end for the record of a slow step, which takes some ms to write."""


class Session:
    """Profiling in this process, from ``init()`` to ``shutdown()``.

    Args:
        process: This process.
        watching: How to watch, and why.
        exit_wait_s: How long the end waits for a capture that is being saved.
        steps: The source of steps.
        on_event: The command for events; empty for none.
        make_exporter: Makes the exporter.

    Attributes:
        inbox: The inbox that ``step()`` tests.
        is_over: Whether it has ended.
    """

    def __init__(
        self,
        process: ProcessContext,
        *,
        watching: tuple[WatchMode, str] = ("poll", "as asked"),
        exit_wait_s: float = 600.0,
        steps: StepOption = StepOption("script"),  # noqa: B008 - frozen
        on_event: tuple[str, ...] = (),
        make_exporter: Callable[[Attempt], Exporter] = Exporter,
    ) -> None:
        self._process, self._clock = process, process.clock
        self._why_watching, self._exit_wait_s = watching[1], exit_wait_s
        self._stopped = self.is_over = False
        self._failure = ""
        self._ended = threading.Event()
        self.inbox = Inbox(self._turn)
        self._costs = CostAccount(self._clock, self.inbox)
        self._journal = Journal(self._process.layout, self.status, self._tick, on_event)
        self._boundary = ErrorBoundary(self._journal)
        self._analyses = Analyses(self._journal)
        self._steps = StepSources(
            steps, self.inbox, self._journal, self._boundary, self._clock, self._renumber_steps
        )
        self._periodic_checks = PeriodicChecks(
            process,
            self.inbox,
            self._journal,
            self._boundary,
            self._costs,
            self._analyses,
            self._steps,
        )
        self._history = StepHistory(
            self.inbox, self._journal, self._clock, self._periodic_checks.memory
        )
        self._journal.on_stop = self._history.end
        self._deliveries = Deliveries(self._boundary.attempt)
        self._repetition = Repetition(process.layout.root, self._clock, lambda: self.inbox.step)
        saved_captures = SavedCaptures(
            process.layout.root,
            self.inbox,
            self._journal,
            self._boundary,
            self._costs,
            self._analyses,
            self._deliveries,
            self._repetition,
        )
        self._exporter = make_exporter(self._boundary.attempt)
        self._at_start = self._process.read()
        self._watcher = Watcher(
            self._process.layout.config,
            self._at_start,
            on_edit=self.handle,
            attempt=self._boundary.attempt,
            say=self._journal.warning,
            mode=watching[0],
            follow_symlinks=self._process.layout.follow_symlinks,
            repetition=self._repetition,
        )
        self._loop = Loop(
            process,
            inbox=self.inbox,
            exporter=self._exporter,
            journal=self._journal,
            boundary=self._boundary,
            costs=self._costs,
            on_saved=saved_captures.handle,
        )
        raw = self._at_start.raw if isinstance(self._at_start, Source) else b""
        self._edit_handler = EditHandler(
            process, self.inbox, self._loop, self._journal, self._boundary, self._repetition,
            at_start=raw,
        )  # fmt: skip
        self._slow_steps = SlowSteps(
            lambda: process.layout,
            lambda: process.rank,
            self.inbox,
            self._journal,
            self._boundary,
            at_start=raw,
            is_busy=lambda: self._loop.occupied,
            request=self._request_window,
        )
        windows = JobWindows(process, self._boundary.attempt, self._deliveries, self._journal)
        self._member = Member(
            process, self.inbox, self._loop, self._journal, self._costs, self._edit_handler,
            windows, self._state,
        )  # fmt: skip
        self._agreements = Agreements(
            process, self._journal, self._boundary, self._edit_handler, self._member
        )

    @property
    def directory(self) -> Path:
        """The watched directory."""
        return self._process.layout.root

    def begin(self) -> None:
        """Open the log, and start the watcher and the exporter.

        Raises:
            OSError: The directory of the log or the status cannot be made.
        """
        self._costs.sample()
        self._journal.start()
        self._exporter.start()
        self._watcher.start()
        self._periodic_checks.clear_up(self._ended)
        capabilities = self._look_at_profilers()
        layout, rank = self._process.layout, self._process.rank
        self._journal.info(
            f"dynprof {__version__} watches {layout.config} by {self._watcher.mode} "
            f"({self._why_watching}); rank {rank.number} of {rank.world_size} ({rank.source}), "
            f"host {layout.host}, pid {layout.pid}; profilers: {'; '.join(map(str, capabilities))}"
        )
        if program := self._journal.events.program:
            self._journal.info(f"{program} runs at events about rank 0, as on_event requests")
        if text := file_mount_problem(layout.config):
            self._journal.warning(text)
        if isinstance(self._at_start, Unread) and self._at_start is not GONE:
            said = "; ".join(map(str, self._at_start.problems))
            self._journal.warning(
                f"{layout.config.name} cannot be used: {said}; correct it and save"
            )
        else:
            text = "no window is requested yet; the next save of the config requests one"
            self._journal.info(text)
        self._boundary.attempt("continuing with baselines", self._resume_baselines)
        self._boundary.attempt("watching for slow steps", self._slow_steps.begin)
        self._boundary.attempt("finding the source of steps", self._steps.begin)
        if self._steps.is_function:  # each rank may find it at another iteration
            self._agreements.on_group = lambda: self.number_as_leader(may_be_unknown=True)

    def _resume_baselines(self) -> None:
        self._repetition.resume(self._at_start, self._process.rank.share)
        if text := str(self._repetition):
            self._journal.info(f"{text}; it was requested before; dynprof cancel ends it")

    def process_ends(self, failure: str) -> None:
        """Note in log and status that the process ends, and the exception that ended its script."""
        self._failure = failure
        self._journal.set_status(failure=failure, process_exits=True)

    def end(self, reason: str) -> None:
        """Close the open window, wait for the capture being saved, end the threads; once only.

        If a signal handler calls it during a turn of this thread, it runs after the turn. If an
        exception interrupts it, a second call continues.

        Raises:
            KeyboardInterrupt: Ctrl-C while it waited; the capture being saved is discarded.
        """
        if self.is_over or self._loop.lock.defer(lambda: self.end(reason)):
            return
        try:
            self._boundary.attempt("ending the session", lambda: self._close_and_save_all(reason))
        except (KeyboardInterrupt, SystemExit):
            self._finish(reason)
            raise
        self._finish(reason)

    def _close_and_save_all(self, reason: str) -> None:
        """Close, save and stop.

        Raises:
            KeyboardInterrupt: Ctrl-C during this; the capture being saved is discarded.
            SystemExit: A signal handler of the script raised it during this.
        """
        text = f"{reason}; it waits up to {self._exit_wait_s:g} s for what is being saved and sent"
        self._journal.set_status(ending=text, stuck_at="")
        try:
            try:
                self._close_and_save(reason)
            except SystemExit:  # the process ends already, as a launcher ends all ranks
                self._close_and_save(reason)
                raise
        except KeyboardInterrupt:
            self._give_up("Ctrl-C while the process ended")
            self._log_undelivered()
            raise

    def _close_and_save(self, reason: str) -> None:
        self._stop_input()
        if waiting := self.inbox.cancel():
            self._journal.report(waiting.number, "not served", f"not served, {reason}")
        self._close_on_other_thread(reason)
        self._loop.close(reason)
        self._loop.discard(reason)
        self._wait_for_saving()

    def _close_on_other_thread(self, reason: str) -> None:
        """Wait for another thread to close its window at its next step, or for a graph capture.

        The window may be this thread's while another thread captures a graph.
        """
        deadline_s = time.monotonic() + CLOSE_WAIT_S
        while (current := self._loop.open_window) and current.blocked_by():
            if not current.thread.is_alive() or time.monotonic() > deadline_s:
                return
            self.inbox.request_close(reason)
            time.sleep(0.005)

    def _wait_for_saving(self) -> None:
        until_s = time.monotonic() + self._exit_wait_s
        self._exporter.stop_waiting_for_ranks()
        if not self._wait_and_report(self._exporter.wait, "saved", "discards it", until_s):
            self._give_up(f"it took more than {self._exit_wait_s:g} s, and the process ended")
        self._exporter.stop()  # it may still hand a saved capture to the deliveries
        sent = self._deliveries.wait, "sent to its place", "ends the wait"
        arrived = self._wait_and_report(*sent, until_s)
        self._leave_agreements()  # after that the record of the window may have to be sent
        if not (arrived and self._wait_and_report(*sent, until_s)):
            self._log_undelivered()
        self._deliveries.end()

    def _log_undelivered(self) -> None:
        for text in self._deliveries.left():
            self._journal.warning(text)

    def _wait_and_report(
        self, wait: Callable[[float], bool], what: str, ctrl_c: str, until_s: float
    ) -> bool:
        """Wait; if that takes long, say so in the log and on stderr, and what Ctrl-C does then."""
        if wait(max(0.0, min(QUIET_S, until_s - time.monotonic()))):
            return True
        text = f"a capture is being {what}; the process waits for it, up to {self._exit_wait_s:g} s"
        self._journal.info(text)
        say(f"{text}. Ctrl-C {ctrl_c}.")
        return wait(max(0.0, until_s - time.monotonic()))

    def _give_up(self, reason: str) -> None:
        for export in self._exporter.abandon(reason):
            text = f"saving is given up: {reason}"
            self._journal.report(export.manifest.request.number, "failed", text)
            self._journal.set_status(last_error=text)
            say(f"{text}.")

    def _finish(self, reason: str) -> None:
        self._stopped = True
        self._leave_agreements()
        self._boundary.attempt("finding the source of steps", self._end_steps)
        self._boundary.attempt("analysis", self._analyses.end)
        self._journal.events.finish()
        self._boundary.attempt(
            "counting the cost", lambda: self._costs.complete_pending(final=True)
        )
        if self._failure:
            text = f"failed at step {self.inbox.step}: {self._failure} ended the script"
            self._journal.warning(text)
        else:
            self._journal.info(f"stopped at step {self.inbox.step}: {reason}")
        self._journal.stop()
        self.is_over = True

    def _end_steps(self) -> None:
        if why := self._steps.why_none():
            self._journal.warning(f"no step has ended: {why}")
        self._steps.end()

    def _stop_input(self) -> None:
        self._ended.set()
        self._boundary.attempt("watching for slow steps", lambda: self._slow_steps.end(RECORD_S))
        self._periodic_checks.memory.end()
        self._boundary.attempt("agreeing with the other ranks", self._agreements.stop)
        self._boundary.attempt("watching", self._watcher.stop)

    def _leave_agreements(self) -> None:
        self._boundary.attempt("agreeing with the other ranks", self._agreements.end)

    def status(self) -> Status:
        """Return the status of this process."""
        current = self._loop.open_window
        request = current.request if current else self.inbox.waiting
        return Status(
            state=self._state(),
            step=self.inbox.step,
            steps_from=self.inbox.steps_from,
            rank=self._process.rank.number,
            role=self._process.layout.role,
            world_size=self._process.rank.world_size,
            host=self._process.layout.host,
            pid=self._process.layout.pid,
            pid_namespace=pid_namespace(),
            agreement=self._agreements.part,
            job=self._agreements.job,
            request=request.number if request else 0,
            progress=current.window.progress if current else None,
            warmup=current.window.warmup if current else 0,
            watching=f"{self._watcher.mode} ({self._why_watching})",
            prof_dirs=self._process.layout.allowed,
            follow_symlinks=self._process.layout.follow_symlinks,
            step_ms=self._costs.step_ms(),
            recent_steps=self._costs.recent_steps(),
            recent_pace=self._history.recent_pace,
            hour_ms=self._history.hour_ms,
            pace_change=self._history.last_change,
            since_last_step_s=round(self._costs.still_s(), 1),
            longest_s=self._costs.longest_s(),
            watch=self._slow_steps.status(),
            memory=self._periodic_checks.memory.status,
            heartbeat=self._clock.wall_s(),
            baselines="" if self._agreements.follows else str(self._repetition),
            edits=self._journal.outcomes.answers,
            **self._journal.status_fields,
        )

    def _state(self) -> str:
        if self._stopped:
            return "stopped"
        if current := self._loop.open_window:
            return current.window.state
        if self._exporter.busy:
            return "saving"
        at_rest = "sending" if self._deliveries.busy else "idle"
        return "waiting" if self.inbox.waiting else at_rest

    def note(self, text: str) -> None:
        """Write a line into the log."""
        self._journal.info(text)

    def handle(self, edit: Edit) -> None:
        """Handle an edit, on the watcher's thread."""
        if edit.is_repeated and self._agreements.follows:
            return
        if edit.is_repeated and (why := self._why_no_baseline()):
            self._journal.info(f"a baseline was skipped: {why}; {self._repetition}")
            return
        if text := self._slow_steps.take(edit):
            self._journal.report(self._edit_handler.register(edit), "watch", text)
            return
        if not edit.is_repeated:
            self._loop.admission.reset_failures()
        self._agreements.handle(edit)

    def _why_no_baseline(self) -> str:
        """Return why no baseline is requested now: it must not delay or replace a request."""
        pending = (*self._journal.outcomes.in_progress, *self._agreements.pending)
        return f"request {pending[0]} is under way" if pending else ""

    def _request_window(self, config: bytes, trigger: str) -> str:
        """Request a window after a slow step; return why not, empty if it is requested."""
        part = self._agreements.part
        if part and part != LEADS:
            return f"this rank {part}"
        if self._loop.occupied or self.inbox.waiting:
            return "another one is open, waits or is being saved"
        self._watcher.submit(Edit(config, self._clock.wall_s(), is_own=True, trigger=trigger))
        return ""

    def _turn(self) -> None:
        if self.inbox.take_wake():
            self._boundary.attempt("the work of other threads at this step", self._costs.step_ends)
        if not self.is_over:
            self._loop.turn()

    def start(self, config_path: str | os.PathLike[str] | None) -> None:
        """Open a window now, from the watched config or another file."""
        self._boundary.attempt("start()", lambda: self._start(config_path))

    def _start(self, config_path: str | os.PathLike[str] | None) -> None:
        if self._loop.open_window:
            self._journal.warning("start(): a window is open already; nothing changes")
            return
        file = None if config_path is None else Path(config_path).resolve()
        self._edit_handler.handle_now(file)
        self._loop.turn(a_step_ended=False)

    def leave_child(self) -> None:
        """Stop recording in a new forked child, without logging: locks may be held."""
        self._slow_steps.abandon()
        self._steps.end()
        self._loop.abandon()

    def stop(self, reason: str = "stopped by the script") -> None:
        """Close the open window early; if another thread opened it, at its next step."""
        if self._loop.open_window and not self._loop.owns_window():
            self.inbox.request_close(reason)
        else:
            self._loop.close(reason)

    def set_step(self, step: int) -> None:
        """Take over the script's number of the running step; an open window closes first."""
        if step != self.inbox.step:
            self._renumber_steps(step, f"the script set the step from {self.inbox.step} to {step}")

    def number_as_leader(self, *, may_be_unknown: bool = False) -> None:
        """Take over the step numbers of rank 0, as the first steps here were not counted.

        A second call changes nothing.

        Args:
            may_be_unknown: As :class:`StepNumbers` takes it.
        """
        member = self._member
        if member.numbers:
            return
        numbers = StepNumbers(
            lambda: member.group.collectives() if member.group else None,
            lambda: not self._loop.busy,
            self._take_number,
            may_be_unknown=may_be_unknown,
        )
        member.numbers = numbers
        what = "comparing steps with rank 0"
        self._steps.follow(
            lambda step: self._boundary.attempt(what, lambda: numbers.begin_step(step))
        )

    def reached(self, framework: str, step: int) -> None:
        """Take over the step count of a framework, from its callback."""
        self._steps.reached(framework, step)

    def _take_number(self, step: int) -> None:
        text = f"steps are renumbered from {self.inbox.step} to {step}, the number on rank 0"
        self._renumber_steps(step, text)

    def _renumber_steps(self, step: int, text: str) -> None:
        self._loop.close(text)
        self._journal.info(text)
        self._costs.renumber(step)
        self.inbox.numbering += 1
        self._steps.renumber(step)
        if self._member.numbers:
            self._member.numbers.reset()

    def _tick(self) -> None:
        self._periodic_checks.tick()
        self._boundary.attempt("the log of slow steps", self._slow_steps.tick)
        self._boundary.attempt("keeping the step history", self._keep_history)
        self._boundary.attempt("checking the open window", self._loop.check)
        self._boundary.attempt(
            "checking the waiting request", self._edit_handler.use_better_profiler
        )
        self._boundary.attempt("checking the profilers", self._follow_self_test)
        self._boundary.attempt("agreeing with the other ranks", self._agreements.check)

    def _keep_history(self) -> None:
        self._history.sample(is_recording=self._state() in ("warmup", "recording", "saving"))
        self._costs.hour_ms = self._history.hour_ms

    def _follow_self_test(self) -> None:
        if any(capable.is_testing for capable in self._journal.status_fields.get("profilers", ())):
            self._look_at_profilers()

    def _look_at_profilers(self) -> tuple[Capabilities, ...]:
        capabilities = self._process.capabilities()
        self._journal.set_status(profilers=capabilities)
        return capabilities

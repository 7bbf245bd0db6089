"""Handling of edits: each one puts a request into the inbox, or is refused with reasons."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import pwd
import threading
from typing import TYPE_CHECKING

from dynprof.errors import Problem, internal_failure
from dynprof.journal.journal import printable
from dynprof.requests.capabilities import MARKS
from dynprof.requests.edit_detection import edit_from
from dynprof.requests.plan import ProcessState, Refusal
from dynprof.requests.request import Cancel, CancelDetector, Request, UnplannedRequest, read_edit
from dynprof.runtime.clock import local
from dynprof.runtime.destination import destination
from dynprof.runtime.layout import free_disk_mb
from dynprof.runtime.plural import counted
from dynprof.runtime.rank import why_no_threads
from dynprof.runtime.stale_folders import note_scratch
from dynprof.session.periodic_checks import learn_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.journal.journal import Journal
    from dynprof.requests.edit_detection import Repetition
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.request import Edit
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.windows.loop import Loop
    from dynprof.windows.process_context import ProcessContext

_NOTHING = "nothing is open or waiting; a save without cancel requests a window"


class EditHandler:
    """Handles edits, on the watcher's thread, and requests of the script itself.

    Args:
        process: This process.
        inbox: Takes the requests.
        loop: Serves them.
        journal: Records the outcome of each.
        boundary: Keeps failures from the caller.
        repetition: Repeats a request for baselines.
        at_start: The content of the file when watching began; empty if it was unreadable.
    """

    def __init__(
        self,
        process: ProcessContext,
        inbox: Inbox,
        loop: Loop,
        journal: Journal,
        boundary: ErrorBoundary,
        repetition: Repetition,
        at_start: bytes,
    ) -> None:
        self._process, self._inbox, self._loop = process, inbox, loop
        self._journal, self._boundary, self._repetition = journal, boundary, repetition
        self._numbers, self._cancels = itertools.count(1), CancelDetector(at_start)
        self._numbering = threading.RLock()  # a signal handler may request a window during an edit
        self._asked: tuple[int, UnplannedRequest] | None = None

    def handle(self, edit: Edit, *, now: bool = False) -> None:
        """Put the request of an edit into the inbox, or refuse it.

        Args:
            edit: The save.
            now: Ignore its start step.
        """
        number = self.register(edit)
        self.guarded(number, lambda: self._answer(edit, number, now=now))

    def handle_now(self, file: Path | None) -> None:
        """Handle the config now, or another file, at the request of the script."""
        edit = edit_from(self._process.read(file), self._process.clock.wall_s(), file)
        self.handle(edit, now=True)

    def register(self, edit: Edit, least: int = 0) -> int:
        """Give an edit the next number, or a higher one, and return it.

        Args:
            edit: The save.
            least: The lowest number that it may have.
        """
        with self._numbering:
            number = next(self._numbers)
            if number < least:
                number, self._numbers = least, itertools.count(least + 1)
        digest = hashlib.sha256(edit.raw).hexdigest() if edit.raw else ""
        self._journal.outcomes.enter(number, digest, edit.edited_at_s)
        if owner := _other_owner(edit):
            self._journal.info(f"request {number}: the config belongs to {owner}")
        return number

    def register_as(self, leader_number: int, edit: Edit) -> int:
        """Register an edit under the leader's number, or a higher one if that is taken."""
        number = self.register(edit, leader_number)
        if number != leader_number:
            text = f"request {number} on this rank is request {leader_number} on rank 0"
            self._journal.info(text)
        return number

    def guarded(self, number: int, action: Callable[[], object]) -> str:
        """Run an action for an edit; if dynprof fails at it, refuse the edit.

        Returns:
            Why it failed; empty if it did not.
        """
        error = self._boundary.attempt(f"request {number}", action)
        why = internal_failure(error) if error else ""
        if why:
            self._journal.report_refusal(number, [why])
        return why

    def use_better_profiler(self) -> None:
        """Move a waiting request to a better profiler that the job has loaded in the meantime.

        The request may have come while the script imported torch; a window of plain Python is then
        not what the user meant.
        """
        waiting = self._inbox.waiting
        if waiting is None or waiting.config.backend != "auto" or waiting.plan.backend == MARKS:
            return
        usable = [one.backend for one in self._process.capabilities() if not one.missing]
        if waiting.plan.backend in usable[:1]:
            return
        number, asked = self._asked or (0, None)
        if asked is None or number != waiting.number:
            return
        better = self.plan(number, asked)
        if isinstance(better, Refusal) or better.plan.backend == waiting.plan.backend:
            return
        if self._inbox.replace(waiting, better):  # from here on a step may take it
            remarks = _remarks(better)
            text = f"{_profiler(better)} serves it now: the job has loaded it since"
            self._journal.note_waiting(number, "\n".join([text, *remarks]))
            self._journal.set_status(remarks=remarks)

    def read(self, edit: Edit, *, now: bool = False) -> UnplannedRequest | Cancel | Refusal:
        """Return the request of an edit, or its refusal."""
        if text := why_no_threads():  # since init(), which does nothing on them
            return Refusal((Problem(text),))
        learn_rank(self._process, self._journal)
        return read_edit(edit, self._cancels, now=now)

    def plan(self, number: int, asked: UnplannedRequest) -> Request | Refusal:
        """Return the planned request for a window, or the reasons against it now."""
        return asked.to_request(number, self._state(asked))

    def _answer(self, edit: Edit, number: int, *, now: bool) -> None:
        asked = self.read(edit, now=now)
        if isinstance(asked, Cancel):
            self.cancel(number)
        elif isinstance(asked, UnplannedRequest):
            self.serve(number, asked)
        else:
            self.refuse(number, asked)

    def serve(self, number: int, asked: UnplannedRequest) -> Refusal | None:
        """Arm a window for a request; else report and return the refusal."""
        self._asked = number, asked
        state = self._state(asked)
        planned = asked.to_request(number, state)
        if isinstance(planned, Refusal):
            self.refuse(number, planned)
            if asked.edit.is_repeated and not planned.selects_rank:  # another run of the job asked
                self._repetition.end()
            return planned
        self._arm(planned, state)
        if asked.agreed_in is None:
            self.repeat(asked, alone=True)
        return None

    def repeat(self, asked: UnplannedRequest, *, alone: bool = False) -> None:
        """Repeat an accepted request from now on, if it asks for that.

        Args:
            asked: The request.
            alone: Whether this rank agrees with no other; ranks then record one after the other.
        """
        every, edit = asked.config.every, asked.edit
        if every and not (edit.is_own or edit.is_received):
            share = self._process.rank.share if alone else 0.0
            begin = functools.partial(self._repetition.begin, edit.raw, every, share)
            self._boundary.attempt("keeping the request for baselines", begin)
            self._journal.info(f"{self._repetition}; dynprof cancel ends the baselines")

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Report why no window opens; each reason on one line, also if another rank wrote it."""
        texts = [printable(str(problem)) for problem in refusal.problems]
        if refusal.selects_rank:
            self._journal.report_refusal(number, texts)
        else:
            self._journal.report(number, "not requested", f"nothing to do; {texts[0]}")

    def _state(self, asked: UnplannedRequest) -> ProcessState:
        """Return the state of the process that the plan of a request depends on."""
        layout, config, edit = self._process.layout, asked.config, asked.edit
        capabilities = self._process.capabilities()
        self._journal.set_status(profilers=capabilities)
        place = destination(layout, config.prof_dir, config.storage.scratch_dir)
        return ProcessState(
            step=self._inbox.step,
            rank=self._process.rank.number,
            capabilities=capabilities,
            free_disk_mb=free_disk_mb(place.staging_dir),
            prof_dir_problem=place.why_not(layout, edit.file, listed_only=edit.is_received),
        )

    def _arm(self, request: Request, state: ProcessState) -> None:
        self._boundary.attempt("noting scratch_dir", lambda: self._note_scratch(request))
        start = request.plan.start_step
        when = f"at step {start}" if start else "at the next step"
        when += self._after_what()
        asked = f"requested after {request.trigger} at" if request.trigger else "saved"
        text = f"accepted, {asked} {local(request.edited_at_s)}; opens {when}"
        text += f", {counted(request.config.active, 'step')} with {_profiler(request)}"
        remarks = _remarks(request)
        self._journal.report(request.number, "waiting", "\n".join([text, *remarks]))
        self._journal.set_status(problems=(), remarks=remarks, last_error=None)
        if replaced := self._inbox.put(request, state.free_disk_mb):
            text = f"superseded by request {request.number}"
            self._journal.report(replaced.number, "superseded", text)

    def _note_scratch(self, request: Request) -> None:
        """Note the scratch folder on disk, in case this process is killed."""
        if scratch := request.config.storage.scratch_dir:
            layout = self._process.layout
            note_scratch(layout.root, layout.capture_dir(scratch))

    def _after_what(self) -> str:
        """Return what a request waits for in addition to its step, maybe for thousands of steps."""
        if current := self._loop.open_window:
            asked = f"request {current.request.number} for {current.window.asked}"
            return f", once the open window ({asked}) is closed and saved"
        return ", once the previous capture is saved" if self._loop.occupied else ""

    def cancel(self, number: int, *, has_cancelled: bool = False) -> None:
        """Drop the waiting request, and order the open window closed.

        Args:
            number: The number of the cancel.
            has_cancelled: Whether it has cancelled a request already.
        """
        waiting, current = self._inbox.cancel(), self._loop.busy
        repeats = self._repetition.end()
        if waiting:
            self._journal.report(waiting.number, "cancelled", f"cancelled by request {number}")
        if current:
            self._inbox.request_close(f"cancelled by request {number}")
        cancels = waiting or has_cancelled
        texts = (("drops the waiting request", cancels), ("closes the open window", current),
                 ("ends the baselines", repeats))  # fmt: skip
        what = " and ".join(text for text, found in texts if found) or _NOTHING
        if repeats:  # they may be another user's
            how = f"{repeats.minutes:g}m" if repeats.minutes else f"'{repeats.steps} steps'"
            again = f"dynprof arm {self._process.layout.root} --every {how}"
            what += f" ({repeats}); to begin them again, run {again} with their other settings"
        self._journal.report(number, "cancel", f"cancel: {what}", loud=bool(repeats))
        self._journal.set_status(problems=(), remarks=())


def _remarks(request: Request) -> tuple[str, ...]:
    """Return the remarks on an accepted request."""
    return *request.plan.fallbacks, *map(str, request.remarks)


def _profiler(request: Request) -> str:
    return f"{request.plan.backend} ({', '.join(request.plan.activities)})"


def _other_owner(edit: Edit) -> str:
    """Return the owner of the config if it is not the job's user; else empty.

    A save in place keeps the owner, so another user who may write the file may have saved it.
    """
    if edit.owner is None or edit.owner == os.geteuid():
        return ""
    with contextlib.suppress(KeyError, OSError):
        return f"{pwd.getpwuid(edit.owner).pw_name} (uid {edit.owner})"
    return f"uid {edit.owner}"

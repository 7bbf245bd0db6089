"""Handling of edits where ranks agree: the leader proposes them, other ranks wait for it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError, Problem
from dynprof.journal.edit_outcomes import MAX_IN_STATUS
from dynprof.journal.journal import printable
from dynprof.journal.status import LEADS, load_status
from dynprof.ranks.agreement_rules import LEADER
from dynprof.ranks.job_group import before_destroy, group_to_agree_in
from dynprof.ranks.member import MAX_RECEIVED
from dynprof.ranks.messages import LEFT_GROUP, Cancellation, Proposal, Withdrawal, in_utf_8
from dynprof.ranks.record import JobWindows
from dynprof.ranks.taking_part import Participant
from dynprof.requests.plan import Refusal, directory_pointer
from dynprof.requests.request import Cancel, UnplannedRequest
from dynprof.runtime.destination import destination
from dynprof.runtime.layout import rank_in_words
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.captures.deliveries import Deliveries
    from dynprof.journal.journal import Journal
    from dynprof.journal.status import JobStatus
    from dynprof.ranks.job_group import JobGroup
    from dynprof.ranks.member import Edits, Member
    from dynprof.requests.request import Edit
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.runtime.layout import Layout
    from dynprof.windows.process_context import ProcessContext

LEADER_WAIT_S = 10.0  # An edit waits for a leader until this long after the group came up.
PROPOSED_WITHIN_S = 10.0
"""Where all ranks read the same file, the leader proposes an edit within this time."""
STORE_LOST = "the job's store was lost"
STORE_LOST_S = 60.0  # The leader gives up windows of other ranks once the store is away this long.
MAX_FORMER_GROUPS = 4  # Former process groups whose windows this rank still follows.


@dataclass(frozen=True)
class _Read:
    """An edit that this rank has read and its leader has not proposed yet."""

    edit: Edit
    at_s: float
    since_s: float  # from when on the leader could have proposed it
    is_early: bool  # whether it was saved before the leader began, which may not have seen it
    is_reported: bool = False  # whether the log says that the leader is silent


class Agreements:
    """Handles edits on the watcher's thread, and checks the group on the journal's thread."""

    def __init__(
        self,
        process: ProcessContext,
        journal: Journal,
        boundary: ErrorBoundary,
        edits: Edits,
        member: Member,
        deliveries: Deliveries,
    ) -> None:
        self._process, self._journal, self._boundary = process, journal, boundary
        self._edits, self._member, self._deliveries = edits, member, deliveries
        self._part: Participant | None = None
        self._windows: JobWindows | None = None
        self._former: deque[JobWindows] = deque(maxlen=MAX_FORMER_GROUPS)
        self._left: Callable[[], object] = object  # returns the store of a group left in order
        self._looking = threading.RLock()  # the watcher's and the journal's thread both check
        self._reads: list[_Read] = []  # saves that the leader has not proposed yet
        self.on_group: Callable[[], object] = object  # called once this rank has a group
        journal.outcomes.on_change = self._changed

    @property
    def part(self) -> str:
        """The part of this rank in agreements, for the status: whether it leads or follows."""
        part = self._part
        if part is None:
            return ""
        return LEADS if part.leads else f"follows {part.leader}" if part.leader else ""

    @property
    def follows(self) -> bool:
        """Whether another rank leads this one, and repeats requests for both."""
        return bool(self._part and not self._part.leads and self._part.leader)

    @property
    def pending(self) -> tuple[int, ...]:
        """The numbers of the requests of this leader that have not ended on all ranks."""
        windows = self._windows
        return (
            tuple(number for number, ranks in windows.pending.items() if ranks) if windows else ()
        )

    @property
    def job(self) -> JobStatus | None:
        """The state of all ranks, for the status; None where this rank has never led."""
        part, windows = self._part, self._windows
        if windows is None:
            return None
        found = windows.status()
        of_groups_before = (one for before in (*self._former,) for one in before.recent())
        recent = {one.request: one for one in (*of_groups_before, *found.earlier)}
        recent.pop(found.request, None)
        if not (recent or found.request or (part and part.leads)):
            return None
        return replace(
            found, earlier=tuple(recent[number] for number in sorted(recent)[-MAX_IN_STATUS:])
        )

    # edits, on the watcher's thread

    def handle(self, edit: Edit) -> None:
        """Handle an edit: propose it where this rank leads, else wait for the leader's proposal."""
        self._begin_or_end()
        part = self._part
        if part:
            had_leader = bool(part.leader)
            part.wait_until_decided(LEADER_WAIT_S)
        if part and part.leads:
            number = self._edits.register(edit, 1 + part.newest)
            self._edits.guarded(number, lambda: self._propose(part, number, edit))
        elif part and part.leader:
            if edit.is_repeated:
                return
            self._leave_to_leader(edit, is_early=not had_leader)
            part.ask_store()
        else:  # rank 0 has no dynprof, or the store cannot serve or is away
            if self._windows and part is None:
                text = "the process group is gone; this rank serves the new save alone"
                self._journal.warning(text)
            self._edits.handle(edit)

    def _propose(self, part: Participant, number: int, edit: Edit) -> None:
        asked, text = self._edits.read(edit), edit.text
        if isinstance(asked, UnplannedRequest):
            asked = self._forbidden(asked) or self._for_no_rank(part, number, asked) or asked
        if isinstance(asked, Cancel):
            part.give_up("cancelled", f"cancelled by request {number}")
            part.broadcast(Cancellation(number, text, edit.edited_at_s))
        elif isinstance(asked, Refusal):
            self._edits.refuse(number, asked)
            self._member.map_number(number, number)
            here = f"rank {self._process.rank.number} refused it"
            reasons = tuple(printable(f"{here}: {problem}") for problem in asked.problems)
            part.broadcast(Withdrawal(number, reasons, text))
        else:
            self._member.propose(number, asked)
            if self._windows:
                self._windows.begin(number, asked)
            proposal = Proposal(number, text, edit.edited_at_s, trigger=edit.trigger)
            part.propose(proposal, asked.config)
            self._edits.repeat(asked)

    def _forbidden(self, asked: UnplannedRequest) -> Refusal | None:
        """Refuse a place that must not be written here, even if this rank does not record."""
        layout, config = self._process.layout, asked.config
        place = destination(layout, config.prof_dir, config.storage.scratch_dir)
        why = place.why_forbidden(layout)
        problem = Problem(f"{why}.", directory_pointer(config, why)) if why else None
        return Refusal(asked.parsed.locate((problem,))) if problem else None

    def _for_no_rank(
        self, part: Participant, number: int, asked: UnplannedRequest
    ) -> Refusal | None:
        """Refuse a request that selects no rank of the job; log ranks that the job lacks."""
        size, ranks = part.group.world_size, asked.config.selected_ranks
        text = ranks.lacking(size)
        if text and not any(map(ranks.may_include, range(size))):
            problem = Problem(f"{text}.", "/ranks" if asked.config.ranks else "/rank_list")
            return Refusal(asked.parsed.locate((problem,)))
        if text:
            self._journal.warning(f"request {number}: {text}")
        return None

    # where this rank follows

    def _leave_to_leader(self, edit: Edit, *, is_early: bool) -> None:
        now_s = time.monotonic()
        with self._looking:
            self._reads = [*self._reads, _Read(edit, now_s, now_s, is_early)][-MAX_RECEIVED:]

    def _check_proposed(self, leader: str) -> None:
        """Check whether the leader has proposed the newest edit that this rank has read."""
        with self._looking:
            if not self._reads:
                return
            read, now_s = self._reads[-1], time.monotonic()
        if self._was_received(read):
            self._replace(read, None)
        elif not leader:  # the store was lost, or the leader is silent or has left
            if self._replace(read, None):
                self._edits.handle(read.edit)
        elif self._member.is_proposed:  # the leader handles its next edit after that
            self._replace(read, replace(read, since_s=now_s))
        elif (
            not read.is_early
            and self._member.last_message_s < read.since_s
            and self._reads_same_file(leader)
        ):
            self._wait_for_silent_leader(read, leader, now_s)
        elif now_s >= read.since_s + PROPOSED_WITHIN_S and self._replace(read, None):
            again = "again" if self._reads_same_file(leader) else "there"
            text = f"{leader} leads and did not propose this save; save it {again}."
            self._edits.refuse(self._edits.register(read.edit), Refusal((Problem(text),)))

    def _wait_for_silent_leader(self, read: _Read, leader: str, now_s: float) -> None:
        """Wait for a leader that has sent nothing since, until this rank loses it."""
        is_long = now_s >= read.at_s + PROPOSED_WITHIN_S
        if is_long and not read.is_reported:
            text = f"{leader} leads, but has sent nothing since this file was saved"
            self._journal.warning(f"{text}; this rank waits for it")
        self._replace(read, replace(read, since_s=now_s, is_reported=is_long))

    def _replace(self, read: _Read, then: _Read | None) -> bool:
        """Replace the newest read edit; return False where there is a newer one.

        Without a successor, older edits that the leader has not seen are superseded.
        """
        with self._looking:
            if self._reads[-1:] != [read]:
                return False
            *older, _ = self._reads
            self._reads = [*older, then] if then else []
        for one in () if then else older:
            if not self._was_received(one):
                text = "superseded by a newer save, before rank 0 had proposed it"
                self._journal.report(self._edits.register(one.edit), "superseded", text)
        return True

    def _was_received(self, read: _Read) -> bool:
        """Return whether the leader has sent the config of an edit."""
        since_s = read.at_s - PROPOSED_WITHIN_S
        received = (*self._member.received,)
        return any(text == read.edit.text and at_s >= since_s for text, at_s in received)

    def _reads_same_file(self, leader: str) -> bool:
        """Return whether the leader reads the same file as this rank."""
        layout, hosts = self._process.layout, {self._process.layout.host}
        with contextlib.suppress(CaptureError):  # a leader on another machine has its status here
            hosts.add(load_status(replace(layout, rank=LEADER).status).host)
        return leader in {describe_leader(LEADER, host, layout) for host in hosts}

    # once a second, on the journal's thread

    def check(self) -> None:
        """Take part once a group has come up; stop once it is gone."""
        self._begin_or_end()
        self._member.count_collectives()
        if self._part:
            if self._member.is_proposed:  # a rank that waits for the leader notices a silent cut
                self._part.ask_store()
            self._part.check_store()
        for windows in (*self._former, *filter(None, [self._windows])):
            windows.write()
        self._finish_records()
        self._check_proposed(self._part.leader if self._part else "")

    def _changed(self) -> None:
        if part := self._part:
            part.changed()

    def _finish_records(self) -> None:
        """Complete records whose other ranks are unreachable, from what this rank knows."""
        for windows in tuple(self._former):
            self._record_own(windows)
        part, led = self._part, self._windows
        if part and led and part.group.rank == LEADER and (away_s := part.away_s):
            self._record_own(led)
            if away_s >= STORE_LOST_S:
                for ranks in led.pending.values():
                    led.mark_lost(ranks - {LEADER}, STORE_LOST)

    def _record_own(self, windows: JobWindows) -> None:
        for number in windows.pending:
            windows.receive(self._member.report(number))
        windows.write()

    def _begin_or_end(self) -> None:
        process = self._process
        with self._looking:
            before, group = self._part, group_to_agree_in(process)
            if before and (group is None or group.store is not before.group.store):
                self._leave()
            if group and self._part is None and group.store is not self._left():
                self._begin(group)

    def _begin(self, group: JobGroup) -> None:
        process, say = self._process, self._journal.warning
        name = describe_leader(group.rank, process.layout.host, process.layout)
        self._member.group = group
        self.on_group()
        self._windows = JobWindows(
            process, group.world_size, name, self._boundary.attempt, self._deliveries, self._journal
        )
        self._part = Participant(group, self._member, name, self._boundary, say, self._windows)
        first = rank_in_words(process.layout.role, LEADER)
        part = "leads" if group.rank == LEADER else f"follows {first}"
        ranks = counted(group.world_size, "rank")
        text = f"{ranks} agree on the steps of windows; this one {part}"
        self._part.begin(lambda: self._journal.info(text))
        if process.store is None:
            before_destroy(self._leave_in_order)

    def _leave_in_order(self) -> None:
        """Leave the store before the script destroys its process group, on its thread."""
        with self._looking:
            if self._part:
                self._left = self._part.group.find_store
        self._boundary.attempt("leaving the process group", self._leave)

    def _leave(self) -> None:
        with self._looking:
            part, self._part = self._part, None
        windows = self._windows
        if part:
            part.end(waits_for_reports=False)
            self._member.group = None
        if windows and windows not in self._former:
            for ranks in windows.pending.values():
                windows.mark_lost(ranks - {LEADER}, LEFT_GROUP)
            self._former.append(windows)

    def stop(self) -> None:
        """Start no further agreement; open windows are still saved and reported."""
        self._member.stop()
        if self._part:
            self._part.give_up("refused", "the leader ends")

    def end(self) -> None:
        """Take part no more."""
        if self._part:
            self._part.end()
        self._finish_records()


def describe_leader(rank: int, host: str, layout: Layout) -> str:
    """Return the name of a leader in the logs of other ranks."""
    return f"{rank_in_words(layout.role, rank)} on {host} ({in_utf_8(str(layout.config))})"

"""Handling of edits where ranks agree: the leader proposes them, other ranks wait for it."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as with_fields

from dynprof.errors import CaptureError, Problem
from dynprof.journal.journal import printable
from dynprof.journal.status import LEADS, load_status
from dynprof.ranks.agreement_rules import LEADER
from dynprof.ranks.member import MAX_RECEIVED
from dynprof.ranks.messages import LEFT_GROUP, Cancellation, Proposal, Withdrawal, in_utf_8
from dynprof.ranks.participant import Participant
from dynprof.ranks.store import before_destroy, group_to_agree_in
from dynprof.requests.plan import Refusal, directory_pointer
from dynprof.requests.request import Cancel, UnplannedRequest
from dynprof.runtime.destination import destination
from dynprof.runtime.layout import rank_in_words
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynprof.journal.journal import Journal
    from dynprof.journal.status import JobStatus
    from dynprof.ranks.member import Edits, Member
    from dynprof.ranks.messages import Message
    from dynprof.ranks.store import JobGroup
    from dynprof.requests.request import Edit
    from dynprof.runtime.error_boundary import ErrorBoundary
    from dynprof.runtime.layout import Layout
    from dynprof.windows.process_context import ProcessContext

LEADER_WAIT_S = 10.0  # An edit waits for a leader until this long after the group came up.
PROPOSED_WITHIN_S = 10.0
"""Where all ranks read the same file, the leader proposes an edit within this time."""
NOT_SENT = "the request could not be sent to the other ranks"
STORE_LOST = "the job's store was lost"
STORE_LOST_S = 60.0  # The leader gives up windows of other ranks once the store is away this long.


@dataclass
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
    ) -> None:
        self._process, self._journal, self._boundary = process, journal, boundary
        self._edits, self._member, self._windows = edits, member, member.windows
        self._part: Participant | None = None
        self._had_group = False
        self._left: Callable[[], object] = object  # returns the store of a group left in order
        self._looking = threading.RLock()  # the watcher's and the journal's thread both check
        self._reads: list[_Read] = []  # saves that the leader has not proposed yet
        self.on_group: Callable[[], object] = object  # called once this rank has a group
        journal.outcomes.on_change = self._changed

    @property
    def part(self) -> str:
        """The part of this rank in agreements, for the status: whether it leads or follows."""
        part = self._part
        if part is None or not (part.leads or part.leader):
            return ""
        return LEADS if part.leads else f"follows {part.leader}"

    @property
    def follows(self) -> bool:
        """Whether another rank leads this one, and repeats requests for both."""
        return self.part not in ("", LEADS)

    @property
    def pending(self) -> tuple[int, ...]:
        """The numbers of the requests of this leader that have not ended on all ranks."""
        return tuple(self._windows.pending)

    @property
    def job(self) -> JobStatus | None:
        """The state of all ranks, for the status; None where this rank has never led."""
        found = self._windows.status()
        return found if self.part == LEADS or found.request else None

    # edits, on the watcher's thread

    def handle(self, edit: Edit) -> None:
        """Handle an edit: propose it where this rank leads, else wait for the leader's proposal."""
        self._begin_or_end()
        part = self._part
        if part:
            had_leader = bool(part.leader)
            part.wait_until_decided(LEADER_WAIT_S)
        if part and part.leads:
            number = self._edits.register(edit, 1 + self._windows.newest)
            self._edits.guarded(number, lambda: self._propose(part, number, edit))
        elif part and part.leader:
            if edit.is_repeated:
                return
            self._leave_to_leader(edit, is_early=not had_leader)
            part.ask_store()
        else:  # rank 0 has no dynprof, or the store cannot serve or is away
            if self._had_group and part is None:
                text = "this rank handles the new request without the others"
                self._journal.warning(f"the process group is gone; {text}")
            self._edits.handle(edit)

    def _propose(self, part: Participant, number: int, edit: Edit) -> None:
        asked, text = self._edits.read(edit), edit.text
        if isinstance(asked, UnplannedRequest):
            asked = self._forbidden(asked) or self._for_no_rank(part, number, asked) or asked
        if isinstance(asked, Cancel):
            part.lead(lambda leader: leader.give_up("cancelled", f"cancelled by request {number}"))
            self._broadcast(part, Cancellation(number, text, edit.edited_at_s))
        elif isinstance(asked, Refusal):
            self._edits.refuse(number, asked)
            self._member.map_number(number, number)
            here = f"rank {self._process.rank.number} refused it"
            reasons = tuple(printable(f"{here}: {problem}") for problem in asked.problems)
            self._broadcast(part, Withdrawal(number, reasons, text))
        else:
            self._windows.begin(number, asked)
            proposal = Proposal(number, text, edit.edited_at_s, trigger=edit.trigger)
            config = asked.config
            part.lead(
                lambda leader: leader.propose(proposal, config),
                otherwise=lambda: self._member.refuse_pending(NOT_SENT),
            )
            self._edits.repeat(asked)

    def _broadcast(self, part: Participant, message: Message) -> None:
        """Send all ranks a message; this one gets it also if it no longer leads."""
        part.lead(lambda leader: leader.broadcast(message), otherwise=lambda: part.answer(message))

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

    def _check_proposed(self) -> None:
        """Check whether the leader has proposed the newest edit that this rank has read."""
        reads, leader = self._reads, self._part.leader if self._part else ""
        if not reads:
            return
        read, number = reads[-1], self._edits.register
        if self._was_received(read):
            self._forget_edits(reads)
        elif not leader:  # the store was lost, or the leader is silent or has left
            if self._forget_edits(reads):
                self._edits.handle(read.edit)
        elif not self._may_be_proposed(read, leader) and self._forget_edits(reads):
            again = "again" if self._reads_same_file(leader) else "there"
            text = f"{leader} leads and did not propose this save; save it {again}."
            self._edits.refuse(number(read.edit), Refusal((Problem(text),)))

    def _may_be_proposed(self, read: _Read, leader: str) -> bool:
        """Return whether the leader may still propose an edit.

        A leader that has sent nothing since is waited for, until this rank loses it.
        """
        now_s = time.monotonic()
        is_silent = not read.is_early and self._member.last_message_s < read.since_s
        if is_silent and self._reads_same_file(leader):
            read.since_s = now_s
            if now_s >= read.at_s + PROPOSED_WITHIN_S and not read.is_reported:
                read.is_reported = True
                text = f"{leader} leads, but has sent nothing since this file was saved"
                self._journal.warning(f"{text}; this rank waits for it")
        return now_s < read.since_s + PROPOSED_WITHIN_S

    def _forget_edits(self, reads: list[_Read]) -> bool:
        """Forget read edits, unless there is a newer one; return whether they are forgotten.

        All but the newest are superseded, except those that the leader has proposed.
        """
        with self._looking:
            if self._reads is not reads:
                return False
            self._reads = []
        for one in reads[:-1]:
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

    def _changed(self) -> None:
        if part := self._part:
            part.changed()

    # once a second, on the journal's thread

    def check(self) -> None:
        """Take part once a group has come up; stop once it is gone."""
        self._begin_or_end()
        self._member.count_collectives()
        if self._part:
            if self._member.is_proposed:  # a rank that waits for the leader notices a silent cut
                self._part.ask_store()
            self._part.check_store()
        self._finish_records()
        self._check_proposed()

    def _finish_records(self) -> None:
        """Write the records, while other ranks are unreachable from what this rank knows."""
        part, windows = self._part, self._windows
        if part is None or not part.leads:
            for number in windows.pending:
                windows.receive(with_fields(self._member.report(number), rank=LEADER))
        if part and part.away_s >= STORE_LOST_S:
            windows.mark_lost(range(1, part.group.world_size), STORE_LOST)
        windows.write()

    def _begin_or_end(self) -> None:
        process = self._process
        with self._looking:
            before, group = self._part, group_to_agree_in(process)
            if before and (group is None or group.store() is not before.group.store()):
                self._leave()
            if group and self._part is None and group.store() is not self._left():
                self._begin(group)

    def _begin(self, group: JobGroup) -> None:
        process, say = self._process, self._journal.warning
        name = describe_leader(group.rank, process.layout.host, process.layout)
        self._member.group = group
        self.on_group()
        self._had_group = True
        self._windows.begin_group(name, group.world_size)
        self._part = Participant(group, self._member, name, self._boundary, say)
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
                self._left = self._part.group.store
        self._boundary.attempt("leaving the process group", self._leave)

    def _leave(self) -> None:
        with self._looking:
            part, self._part = self._part, None
        if part:
            part.end(waits_for_reports=False)
            self._member.group = None
            self._windows.drop_others(LEFT_GROUP)

    def stop(self) -> None:
        """Start no further agreement; open windows are still saved and reported."""
        self._member.stop()
        if self._part:
            self._part.lead(lambda leader: leader.give_up("refused", "the leader ends"))

    def end(self) -> None:
        """Take part no more."""
        if self._part:
            self._part.end()
        self._finish_records()


def describe_leader(rank: int, host: str, layout: Layout) -> str:
    """Return the name of a leader in the logs of other ranks."""
    return f"{rank_in_words(layout.role, rank)} on {host} ({in_utf_8(str(layout.config))})"

"""A rank's reaction to the leader's messages; the leader's own rank has one too."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace as with_fields

from dynprof.config import parse_config
from dynprof.errors import ConfigError, Problem
from dynprof.journal.edit_outcomes import IN_PROGRESS, MAX_KEPT
from dynprof.journal.journal import printable
from dynprof.ranks.agreement_rules import LEADER
from dynprof.ranks.messages import (
    Cancellation,
    Opening,
    Profiler,
    Proposal,
    Question,
    Reply,
    Report,
    Withdrawal,
    in_utf_8,
)
from dynprof.requests.plan import Refusal
from dynprof.requests.request import Edit, UnplannedRequest
from dynprof.runtime.destination import absolute_place

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from dynprof.config import ProfilerConfig
    from dynprof.journal.journal import Journal
    from dynprof.ranks.job_group import JobGroup
    from dynprof.ranks.messages import Message
    from dynprof.ranks.step_numbers import StepNumbers
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.plan import Plan
    from dynprof.requests.request import Cancel, Request
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.loop import Loop
    from dynprof.windows.process_context import ProcessContext

USUAL_STEP_MS = 100.0  # Assumed step time where none has been measured yet.
MIN_TIMED_SECONDS = 3  # Samples in which steps ended; with fewer, the fastest is no estimate.
OPENS_SOON_S = 2.0
"""A window that opens in this time is not superseded: only some ranks might record it."""
MAX_RECEIVED = 16  # Configs of the leader; as many saves may wait for its word.
MAX_REPORTS = 8  # Newest windows whose outcomes are sent to a new leader.


class Edits(Protocol):
    """The handler of edits on this rank; see ``session.edit_handler``."""

    def register(self, edit: Edit, least: int = 0) -> int:
        """Register an edit and return its number."""

    def handle(self, edit: Edit) -> None:
        """Serve an edit on this rank alone."""

    def read(self, edit: Edit) -> UnplannedRequest | Cancel | Refusal:
        """Return what an edit requests."""

    def register_as(self, leader_number: int, edit: Edit) -> int:
        """Register an edit under the leader's number."""

    def guarded(self, number: int, action: Callable[[], object]) -> str:
        """Run an action for an edit; return why dynprof failed at it."""

    def plan(self, number: int, asked: UnplannedRequest) -> Request | Refusal:
        """Return the request for a window, or the reasons against it."""

    def serve(self, number: int, asked: UnplannedRequest) -> Refusal | None:
        """Arm a window; else report and return the refusal."""

    def repeat(self, asked: UnplannedRequest) -> None:
        """Repeat an accepted request from now on, if it asks for that."""

    def refuse(self, number: int, refusal: Refusal) -> None:
        """Report why no window opens."""

    def cancel(self, number: int, *, has_cancelled: bool = False) -> None:
        """Drop the waiting request and close the open window."""


class Member:
    """Carries out the leader's messages and replies, on the thread of the agreement."""

    def __init__(
        self,
        process: ProcessContext,
        inbox: Inbox,
        loop: Loop,
        journal: Journal,
        costs: CostAccount,
        edits: Edits,
        state: Callable[[], str],
    ) -> None:
        self._process, self._inbox, self._loop = process, inbox, loop
        self._journal, self._costs, self._edits = journal, costs, edits
        self._state = state
        self.group: JobGroup | None = None  # the group of this rank
        self.numbers: StepNumbers | None = None  # set where dynprof was attached to the process
        # The newest configs in the leader's messages, and when they came.
        self.received: deque[tuple[str, float]] = deque(maxlen=MAX_RECEIVED)
        self.last_message_s = -math.inf  # when the leader's newest message came
        self.is_proposed = False  # whether a proposal has yet to be opened or withdrawn
        # Proposals of this rank, where it leads.
        self._own_proposals: dict[int, UnplannedRequest] = {}
        self._proposal: Proposal | None = None
        self._own = 0  # the number of the proposal on this rank
        self._asked: UnplannedRequest | None = None  # the request of the proposal
        self._asked_first: UnplannedRequest | None = None  # the same, before it was narrowed
        self._pending = self._has_own_numbers = self._ends = self._cancelled = False
        self._plan: Plan | None = None
        self._numbers: dict[int, int] = {}  # numbers on this rank, by the leader's numbers
        self._opened: set[int] = set()  # requests that the leader has opened here
        self._replied_numbering = 0  # the numbering of the step in the last reply
        self._last_report: Report | None = None  # the last report sent
        self._counts: deque[tuple[int, int]] = deque(maxlen=3)  # steps and collectives
        self._step_ms: float | None = None  # the last known mean step time

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self.group.rank if self.group else 0

    def stop(self) -> None:
        """Take part in no further agreement: the process ends."""
        self._ends = True

    def propose(self, number: int, asked: UnplannedRequest) -> None:
        """Note a request that this rank is about to propose."""
        self._own_proposals[number] = asked

    def map_number(self, leader_number: int, own: int) -> None:
        """Map a request number of the leader to the number on this rank."""
        known = {n: here for n, here in self._numbers.items() if n < leader_number}
        old = [n for n in list(known)[:-MAX_KEPT] if self._outcome(n) not in IN_PROGRESS]
        self._numbers = {n: here for n, here in known.items() if n not in old} | {
            leader_number: own
        }
        self._opened &= self._numbers.keys() - {leader_number}

    def answer(self, message: Message, place: int) -> Reply:
        """Carry out a message of the leader, and reply with the state of this rank."""
        self.last_message_s = time.monotonic()
        if isinstance(message, Proposal):
            return self._consider(message, place)
        problem = ""
        if isinstance(message, Opening):
            problem = self._open(message)
            self._drop_superseded(message.superseded)
        elif isinstance(message, Withdrawal):
            self._withdraw(message)
        elif isinstance(message, Cancellation):
            self._cancel(message)
        elif isinstance(message, Question):
            self._compare_again(message)
        number = getattr(message, "number", 0)
        return self._reply(number, place, problem, takes_part=self._pending and not problem)

    # proposals

    def _consider(self, proposal: Proposal, place: int) -> Reply:
        """Reply whether this rank takes part, can record, and is free for a window."""
        if self._ends:
            return self._reply(proposal.number, place)
        self.is_proposed, self._cancelled = True, False
        own, asked = self._request_of(proposal)
        self.received.append((proposal.config, time.monotonic()))
        self.map_number(proposal.number, own)
        self._proposal, self._own, self._asked, self._pending = proposal, own, None, False
        problem, profiler = "", None
        able = (one for one in self._process.capabilities() if not one.missing)
        usable = tuple(Profiler(one.backend, one.activities) for one in able)
        self._compare_steps(proposal.begun)
        planned: list[Request | Refusal] = [asked] if isinstance(asked, Refusal) else []
        if isinstance(asked, UnplannedRequest):
            self._asked = asked
            problem = self._edits.guarded(own, lambda: planned.append(self._edits.plan(own, asked)))
        for found in planned:
            if isinstance(found, Refusal):
                self._edits.refuse(own, found)
                problem = "; ".join(map(str, found.problems)) if found.selects_rank else ""
            else:
                self._pending, self._plan = True, found.plan
                profiler = Profiler(found.plan.backend, found.plan.activities)
        reply = self._reply(proposal.number, place, problem, takes_part=self._pending)
        return with_fields(reply, profiler=profiler, usable=usable)

    def _compare_steps(self, leaders: Collection[tuple[int, int]]) -> None:
        if self.numbers and self.rank != LEADER:
            self._has_own_numbers = not self.numbers.follow(leaders)

    def _compare_again(self, question: Question) -> None:
        """Compare the steps that have begun since the proposal."""
        if self._has_own_numbers and self._asks_for(question.number):
            self._compare_steps(question.begun)

    def _request_of(self, proposal: Proposal) -> tuple[int, UnplannedRequest | Refusal]:
        """Return the number of a proposal on this rank, and its request."""
        if own := self._own_proposals.pop(proposal.number, None):
            self._asked_first = own
            return proposal.number, narrowed(own, proposal)
        before = self._proposal
        now = with_fields(proposal, ranks="", profiler=None, begun=())
        known = before and with_fields(before, ranks="", profiler=None, begun=()) == now
        if known and self._asked_first:  # it is proposed again, narrowed
            return self._own, narrowed(self._asked_first, proposal)
        edit = Edit(
            proposal.config.encode(),
            proposal.edited_at_s,
            is_received=True,
            trigger=printable(proposal.trigger),
        )
        self._loop.admission.reset_failures()
        number = self._own if known else self._edits.register_as(proposal.number, edit)
        self._asked_first = None
        try:
            parsed = parse_config(edit.raw)
        except ConfigError as error:  # another version of dynprof leads
            return number, Refusal(error.problems)
        self._asked_first = UnplannedRequest(edit, parsed.config, parsed, now=False)
        return number, narrowed(self._asked_first, proposal)

    def _busy(self) -> str:
        # In the order in which a request becomes an open window, so that none is missed.
        if self._opens_soon() or self._loop.occupied:
            return "its previous window is not closed and saved"
        if self.numbers and self.numbers.is_behind:
            return "its next step does not have rank 0's number yet"
        return self._loop.admission.refused_by(self._plan) if self._plan else ""

    def _opens_soon(self) -> bool:
        waiting, step_ms = self._inbox.waiting, self._costs.step_ms() or USUAL_STEP_MS
        if waiting is None or waiting.plan.start_step is None:
            return False
        return (waiting.plan.start_step - self._inbox.step) * step_ms / 1e3 < OPENS_SOON_S

    def _open(self, opening: Opening) -> str:
        """Arm the window at the announced step; return why that failed, empty if it did not."""
        own, asked = self._own, self._asked
        if not self._take_pending(opening.number) or asked is None:
            return ""
        if self._ends:
            self._edits.refuse(own, Refusal((Problem("the process ends."),)))
            return "its process ends"
        if why := opening.left_out.get(self.rank):
            self._edits.refuse(own, Refusal((Problem(f"left out by the leader: {why}"),)))
            return ""
        self._opened.add(opening.number)
        config = asked.config.model_copy(update={"start_step": opening.step})
        asked = replace(asked, config=config, agreed_in=self._replied_numbering)
        refused: list[Refusal | None] = []
        failed = self._edits.guarded(own, lambda: refused.append(self._edits.serve(own, asked)))
        return failed or "; ".join(str(p) for one in refused if one for p in one.problems)

    def _drop_superseded(self, superseded: Collection[int]) -> None:
        """Drop a waiting request that the other ranks gave up while this one was away."""
        waiting = self._inbox.waiting
        given_up = {self._numbers.get(number) for number in superseded}
        if waiting and waiting.number in given_up and self._inbox.take(waiting):
            self._journal.report(waiting.number, "superseded", "superseded by a newer request")

    def _withdraw(self, withdrawal: Withdrawal) -> None:
        """Drop the proposal, and report why."""
        number, outcome = withdrawal.number, withdrawal.outcome
        self.received.append((withdrawal.config, time.monotonic()))
        reasons = "; ".join(map(printable, withdrawal.reasons))
        is_own = self._own_proposals.pop(number, None)
        if number not in self._numbers:  # it was not proposed here
            edit = Edit(withdrawal.config.encode(), time.time())
            own = number if is_own else self._edits.register_as(number, edit)
            self.map_number(number, own)
            # Not in the status: with thousands of ranks, the report of the leader is enough.
            self._journal.report(own, outcome, reasons)
        elif not self._take_pending(number):
            return
        elif outcome == "refused":
            texts = [reason.removesuffix(".") for reason in withdrawal.reasons]
            problems = tuple(Problem(f"{text}; no rank opens.") for text in texts)
            self._edits.refuse(self._own, Refusal(problems))
        else:
            self._journal.report(self._own, outcome, reasons)
        self._cancelled |= outcome == "cancelled"

    def _cancel(self, cancellation: Cancellation) -> None:
        """Drop the waiting request and close the open window."""
        number = cancellation.number
        self.received.append((cancellation.config, time.monotonic()))
        if self.rank:
            edit = Edit(cancellation.config.encode(), cancellation.edited_at_s)
            number = self._edits.register_as(number, edit)
        self._edits.cancel(number, has_cancelled=self._cancelled)
        self._cancelled = False

    def refuse_pending(self, why: str) -> None:
        """Refuse the pending proposals: no leader will conclude them."""
        self.is_proposed = False
        waiting = [self._own] if self._pending else []
        self._pending = False
        while self._own_proposals:
            waiting.append(self._own_proposals.popitem()[0])
        self._journal.info(why + ("" if waiting else "; nothing was proposed here"))
        for number in waiting:
            self._edits.refuse(number, Refusal((Problem(f"{why}; save it again."),)))

    def _take_pending(self, number: int) -> bool:
        """Return whether that is the number of the pending proposal, and end it."""
        is_newest = self._proposal is not None and self._proposal.number == number
        self.is_proposed &= not is_newest
        is_asked = self._pending and is_newest
        self._pending &= not is_newest
        return is_asked

    def _asks_for(self, number: int) -> bool:
        """Return whether that is the number of the pending proposal."""
        return self._pending and self._proposal is not None and self._proposal.number == number

    # reports of this rank

    def count_collectives(self) -> None:
        """Note the number of collectives; called once a second."""
        if self.group and (count := self.group.collectives()) is not None:
            self._counts.append((self._inbox.step, count))

    @property
    def _steps_together(self) -> bool | None:
        """Whether each recent step has begun a collective of the default group.

        None until two counts are known.
        """
        counts = list(self._counts)
        if len(counts) < 2:
            return None if self.group and self.group.collectives() is not None else False
        (step, count), (newest_step, newest_count) = counts[0], counts[-1]
        begun, steps = newest_count - count, newest_step - step
        return min(begun, steps) > 0 and begun + 1 >= steps  # the newest may lack its own yet

    def ready_again(self, place: int) -> Reply | None:
        """Return the reply to the pending proposal as of now; None if there is none."""
        if not self._pending or self._proposal is None:
            return None
        return with_fields(self._reply(self._proposal.number, place, takes_part=True), again=True)

    def news(self) -> Report | None:
        """Return a report that the leader does not have yet; None if there is none."""
        number = self._proposal.number if self._proposal else 0
        on_the_way = [n for n in self._opened if self._outcome(n) in IN_PROGRESS]
        report = self.report(min(on_the_way, default=max(self._opened, default=number)))
        facts = with_fields(report, still_s=0.0, step_s=None)
        if facts == self._last_report:
            return None
        self._last_report = facts
        return report

    def reports(self) -> tuple[Report, ...]:
        """Return the outcomes of the newest requests, for a leader that may not know them."""
        newest = sorted(self._opened)[-MAX_REPORTS:]
        return tuple(map(self.report, newest or [0]))

    def _outcome(self, number: int) -> str:
        own = self._numbers.get(number)
        answer = None if own is None else self._journal.outcomes.answer(own)
        return answer.outcome if answer else ""

    def report(self, number: int) -> Report:
        """Return the report on a request on this rank."""
        own, self._step_ms = self._numbers.get(number), self._costs.step_ms() or self._step_ms
        answer = None if own is None else self._journal.outcomes.answer(own)
        report = Report(
            rank=self.rank,
            number=number,
            host=self._process.layout.host,
            newest=self._journal.outcomes.newest,
            state=self._state(),
            still_s=round(self._costs.still_s(), 1),
            step_s=None if self._step_ms is None else self._step_ms / 1e3,
        )
        if answer is None:
            return report
        capture = (
            absolute_place(self._process.layout.root, answer.capture) if answer.capture else ""
        )
        why = printable(answer.text.partition("\n")[0])[:300]  # one line
        capture, why = in_utf_8(capture), in_utf_8(why)
        return with_fields(report, outcome=answer.outcome, capture=capture, cut=answer.cut, why=why)

    def _reply(
        self, number: int, place: int, problem: str = "", *, takes_part: bool = False
    ) -> Reply:
        busy = self._busy() if takes_part else ""
        self._replied_numbering = self._inbox.numbering  # first: the script may renumber its steps
        return Reply(
            rank=self.rank,
            place=place,
            report=self.report(number),
            problem=problem,
            takes_part=takes_part,
            busy=busy,
            step=self._inbox.step,
            fast_s=self._fast_s(),
            has_own_numbers=self._has_own_numbers,
            steps_together=self._steps_together,
        )

    def _fast_s(self) -> float | None:
        """Return the step time of the fastest recent second; None while too few are known.

        The first step may compile for a minute, and the others take a millisecond.
        """
        pairs = itertools.pairwise(self._costs.recent_steps())
        times = [(to_s - from_s) / (to - last) for (from_s, last), (to_s, to) in pairs if to > last]
        known = [one for one in times if one > 0]
        return min(known) if len(known) >= MIN_TIMED_SECONDS else None


def narrowed(asked: UnplannedRequest, proposal: Proposal) -> UnplannedRequest:
    """Return the request with the ranks and profiler that the leader has chosen for all."""
    update: dict[str, object] = {}
    if proposal.ranks:
        update |= {"ranks": proposal.ranks, "is_rank": False}
    if proposal.profiler:
        update |= {"backend": proposal.profiler.backend}
        update |= {"activities": _watched(asked.config, proposal.profiler)}
    return replace(asked, config=asked.config.model_copy(update=update)) if update else asked


def _watched(config: ProfilerConfig, profiler: Profiler) -> list[str]:
    """Return the requested activities that all ranks support; all supported ones if none is."""
    if config.watches_all:
        return list(profiler.activities)
    asked = {name.upper() for name in config.activities}
    return [name for name in profiler.activities if name in asked] or list(profiler.activities)

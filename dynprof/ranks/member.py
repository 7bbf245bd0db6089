"""A rank's reaction to the leader's messages; the leader's own rank has one too."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from msgspec.structs import replace as with_fields

from dynprof.config import parse_config
from dynprof.errors import ConfigError, Problem
from dynprof.journal.edit_outcomes import IN_PROGRESS
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
    from dynprof.journal.edit_outcomes import Answer
    from dynprof.journal.journal import Journal
    from dynprof.ranks.job_windows import JobWindows
    from dynprof.ranks.messages import Message
    from dynprof.ranks.store import JobGroup
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.plan import Plan
    from dynprof.requests.request import Cancel, Request
    from dynprof.steps.step_numbers import StepNumbers
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.loop import Loop
    from dynprof.windows.process_context import ProcessContext

USUAL_STEP_MS = 100.0  # Assumed step time where none has been measured yet.
MIN_TIMED_SECONDS = 3  # Samples in which steps ended; with fewer, the fastest is no estimate.
OPENS_SOON_S = 2.0
"""A window that opens in this time is not superseded: only some ranks might record it."""
LATE_REPLY_S = 1.0  # A rank that replied this late in a step also reports when the step ends.
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


@dataclass
class _Considered:
    """The newest proposal, as this rank sees it."""

    proposal: Proposal
    own: int  # the number of the request on this rank
    first: UnplannedRequest | Refusal  # the request, before the leader narrowed it
    asked: UnplannedRequest | Refusal
    is_open: bool = True  # whether the leader has yet to open or withdraw it
    takes_part: bool = False
    problem: str = ""  # why this rank cannot record
    plan: Plan | None = None
    usable: tuple[Profiler, ...] = ()


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
        windows: JobWindows,
        state: Callable[[], str],
    ) -> None:
        self._process, self._inbox, self._loop = process, inbox, loop
        self._journal, self._costs, self._edits = journal, costs, edits
        self._state, self.windows = state, windows
        self.group: JobGroup | None = None  # the group of this rank
        self.numbers: StepNumbers | None = None  # set where dynprof was attached to the process
        # The newest configs in the leader's messages, and when they came.
        self.received: deque[tuple[str, float]] = deque(maxlen=MAX_RECEIVED)
        self.last_message_s = -math.inf  # when the leader's newest message came
        self._considered: _Considered | None = None
        self._unready: Reply | None = None  # the last reply, if this rank was not ready
        self._has_own_numbers = self._ends = self._cancelled = False
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

    @property
    def is_proposed(self) -> bool:
        """Whether a proposal has yet to be opened or withdrawn."""
        return self._considered is not None and self._considered.is_open

    @property
    def is_unready(self) -> bool:
        """Whether the leader waits for this rank; see :meth:`ready_again`."""
        return self._unready is not None

    def stop(self) -> None:
        """Take part in no further agreement: the process ends."""
        self._ends = True

    def map_number(self, leader_number: int, own: int) -> None:
        """Map a request number of the leader to the number on this rank.

        A new leader may count from one again.
        """
        is_kept, before = self._journal.outcomes.answer, self._numbers.items()
        earlier = {n: here for n, here in before if n < leader_number and is_kept(here)}
        self._numbers = {**earlier, leader_number: own}
        self._opened &= earlier.keys()

    def answer(self, message: Message, place: int) -> Reply:
        """Carry out a message of the leader, and reply with the state of this rank."""
        self.last_message_s = time.monotonic()
        if isinstance(message, (Proposal, Withdrawal, Cancellation)):
            self.received.append((message.config, self.last_message_s))
        before, self._unready = self._unready, None
        problem = self._carry_out(message)
        reply = self._reply(getattr(message, "number", 0), place, problem)
        if reply.takes_part and (reply.busy or reply.report.still_s >= LATE_REPLY_S):
            self._unready = reply
        elif before and not isinstance(message, Proposal):
            self._unready = with_fields(before, place=place)
        return reply

    def _carry_out(self, message: Message) -> str:
        """Return why a window could not be armed; empty for all other messages."""
        if isinstance(message, Proposal):
            self._consider(message)
        elif isinstance(message, Opening):
            problem = self._open(message)
            self._drop_superseded(message.superseded)
            return problem
        elif isinstance(message, Withdrawal):
            self._withdraw(message)
        elif isinstance(message, Cancellation):
            self._cancel(message)
        elif isinstance(message, Question) and self._has_own_numbers:
            self._compare_steps(message.begun)  # that have begun since the proposal
        return ""

    def ready_again(self) -> Reply | None:
        """Return a new reply if this rank was not ready for a proposal and now is; else None."""
        before, considered = self._unready, self._considered
        if before is None:
            return None
        now = None
        if considered and considered.takes_part:
            now = self._reply(considered.proposal.number, before.place, again=True)
            if now.busy or (now.step == before.step and not before.busy):
                return None
        self._unready = None
        return now

    # proposals

    def _consider(self, proposal: Proposal) -> None:
        """Find out whether this rank takes part, can record, and is free for a window."""
        if self._ends:
            return
        now = self._considered = self._read(proposal)
        self._cancelled = False
        self.map_number(proposal.number, now.own)
        able = (one for one in self._process.capabilities() if not one.missing)
        now.usable = tuple(Profiler(one.backend, one.activities) for one in able)
        self._compare_steps(proposal.begun)
        now.problem = self._edits.guarded(now.own, lambda: self._plan(now)) or now.problem

    def _plan(self, now: _Considered) -> None:
        asked = now.asked
        found = asked if isinstance(asked, Refusal) else self._edits.plan(now.own, asked)
        if not isinstance(found, Refusal):
            now.takes_part, now.plan = True, found.plan
            return
        self._edits.refuse(now.own, found)
        now.problem = "; ".join(map(str, found.problems)) if found.selects_rank else ""

    def _compare_steps(self, leaders: Collection[tuple[int, int]]) -> None:
        if self.numbers and self.rank != LEADER:
            self._has_own_numbers = not self.numbers.follow(leaders)

    def _read(self, proposal: Proposal) -> _Considered:
        """Return a proposal with its request, and with its number on this rank."""
        before = self._considered
        if before and before.proposal.key == proposal.key:  # it is proposed again, narrowed
            own, asked = before.own, before.first
        elif self.rank == LEADER and (of_leader := self.windows.asked(proposal.number)):
            own, asked = proposal.number, of_leader
        else:
            edit = Edit(
                proposal.config.encode(),
                proposal.edited_at_s,
                is_received=True,
                trigger=printable(proposal.trigger),
            )
            self._loop.admission.reset_failures()
            own = self._edits.register_as(proposal.number, edit)
            try:
                parsed = parse_config(edit.raw)
                asked = UnplannedRequest(edit, parsed.config, parsed, now=False)
            except ConfigError as error:  # another version of dynprof leads
                asked = Refusal(error.problems)
        narrow = asked if isinstance(asked, Refusal) else narrowed(asked, proposal)
        return _Considered(proposal, own, asked, narrow)

    def _busy(self, plan: Plan | None) -> str:
        # In the order in which a request becomes an open window, so that none is missed.
        if self._opens_soon() or self._loop.occupied:
            return "its previous window is not closed and saved"
        if self.numbers and self.numbers.is_behind:
            return "its next step does not have rank 0's number yet"
        return self._loop.admission.refused_by(plan) if plan else ""

    def _opens_soon(self) -> bool:
        waiting, step_ms = self._inbox.waiting, self._costs.step_ms() or USUAL_STEP_MS
        if waiting is None or waiting.plan.start_step is None:
            return False
        return (waiting.plan.start_step - self._inbox.step) * step_ms / 1e3 < OPENS_SOON_S

    def _open(self, opening: Opening) -> str:
        """Arm the window at the announced step; return why that failed, empty if it did not."""
        now = self._conclude(opening.number)
        if now is None or isinstance(now.asked, Refusal):
            return ""
        if self._ends:
            self._edits.refuse(now.own, Refusal((Problem("the process ends."),)))
            return "its process ends"
        if why := opening.left_out.get(self.rank):
            self._edits.refuse(now.own, Refusal((Problem(f"left out by the leader: {why}"),)))
            return ""
        self._opened.add(opening.number)
        config = now.asked.config.model_copy(update={"start_step": opening.step})
        asked = replace(now.asked, config=config, agreed_in=self._replied_numbering)
        refused: list[Refusal | None] = []
        serve = lambda: refused.append(self._edits.serve(now.own, asked))  # noqa: E731
        failed = self._edits.guarded(now.own, serve)
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
        reasons = "; ".join(map(printable, withdrawal.reasons))
        if number not in self._numbers:  # it was not proposed here
            edit = Edit(withdrawal.config.encode(), time.time())
            is_own = self.rank == LEADER and self.windows.asked(number)
            own = number if is_own else self._edits.register_as(number, edit)
            self.map_number(number, own)
            # Not in the status: with thousands of ranks, the report of the leader is enough.
            self._journal.report(own, outcome, reasons)
        elif now := self._conclude(number):
            if outcome == "refused":
                texts = [reason.removesuffix(".") for reason in withdrawal.reasons]
                problems = tuple(Problem(f"{text}; no rank opens.") for text in texts)
                self._edits.refuse(now.own, Refusal(problems))
            else:
                self._journal.report(now.own, outcome, reasons)
        else:
            return
        self._cancelled |= outcome == "cancelled"

    def _cancel(self, cancellation: Cancellation) -> None:
        """Drop the waiting request and close the open window."""
        number = cancellation.number
        if self.rank != LEADER:
            edit = Edit(cancellation.config.encode(), cancellation.edited_at_s)
            number = self._edits.register_as(number, edit)
        self._edits.cancel(number, has_cancelled=self._cancelled)
        self._cancelled = False

    def refuse_pending(self, why: str) -> None:
        """Refuse the pending proposals: no leader will conclude them."""
        number = self._considered.proposal.number if self._considered else 0
        waiting = [one for one in self.windows.refuse_open(why) if one not in self._numbers]
        waiting += [now.own] if (now := self._conclude(number)) else []
        self._journal.info(why + ("" if waiting else "; nothing was proposed here"))
        for one in waiting:
            self._edits.refuse(one, Refusal((Problem(f"{why}; save it again."),)))

    def _conclude(self, number: int) -> _Considered | None:
        """End the proposal of that number; return it if this rank took part in it."""
        now = self._considered
        if now is None or now.proposal.number != number:
            return None
        takes_part, now.takes_part, now.is_open = now.takes_part, False, False
        return now if takes_part else None

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

    def news(self) -> Report | None:
        """Return a report that the leader does not have yet; None if there is none."""
        answers = {number: self._own_answer(number) for number in self._opened}
        on_the_way = [n for n, one in answers.items() if one and one.outcome in IN_PROGRESS]
        report = self.report(min(on_the_way, default=max(self._opened, default=0)))
        facts = with_fields(report, still_s=0.0, step_s=None)
        if facts == self._last_report:
            return None
        self._last_report = facts
        return report

    def reports(self) -> tuple[Report, ...]:
        """Return the outcomes of the newest requests, for a leader that may not know them."""
        newest = sorted(self._opened)[-MAX_REPORTS:]
        return tuple(map(self.report, newest or [0]))

    def _own_answer(self, number: int) -> Answer | None:
        own = self._numbers.get(number)
        return None if own is None else self._journal.outcomes.answer(own)

    def report(self, number: int) -> Report:
        """Return the report on a request on this rank."""
        answer, self._step_ms = self._own_answer(number), self._costs.step_ms() or self._step_ms
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
        root, capture = self._process.layout.root, answer.capture
        return with_fields(
            report,
            outcome=answer.outcome,
            capture=in_utf_8(absolute_place(root, capture)) if capture else "",
            cut=answer.cut,
            why=in_utf_8(printable(answer.text.partition("\n")[0])[:300]),  # one line
        )

    def _reply(self, number: int, place: int, problem: str = "", *, again: bool = False) -> Reply:
        self._replied_numbering = self._inbox.numbering  # first: the script may renumber its steps
        reply = Reply(
            rank=self.rank,
            place=place,
            report=self.report(number),
            problem=problem,
            step=self._inbox.step,
            fast_s=self._fast_s(),
            has_own_numbers=self._has_own_numbers,
            steps_together=self._steps_together,
            again=again,
        )
        now = self._considered
        if now is None or not now.is_open or now.proposal.number != number or self._ends:
            return reply
        plan = now.plan
        return with_fields(
            reply,
            problem=now.problem,
            takes_part=now.takes_part,
            busy=self._busy(plan) if now.takes_part else "",
            profiler=Profiler(plan.backend, plan.activities) if plan else None,
            usable=now.usable,
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

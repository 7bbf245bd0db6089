"""What this rank does with what the leader of its job says, itself included."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.config import parse_config
from dynprof.coordination.messages import Profiler, Reply
from dynprof.coordination.wire import in_utf_8
from dynprof.errors import ConfigError, Problem
from dynprof.files.destination import placed
from dynprof.journal.edit_outcomes import ON_THE_WAY
from dynprof.journal.journal import printable
from dynprof.requests.edits import Edit
from dynprof.requests.plan import Refusal
from dynprof.requests.request import Asked
from dynprof.session.known_numbers import KnownNumbers
from dynprof.session.marks import Marks
from dynprof.session.narrowing import narrowed
from dynprof.session.proposed import Proposed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from dynprof.coordination.job_group import JobGroup
    from dynprof.coordination.messages import Cancellation, Opening, Proposal, Withdrawal
    from dynprof.journal.journal import Journal
    from dynprof.requests.inbox import Inbox
    from dynprof.requests.plan import Plan
    from dynprof.session.edit_handler import EditHandler
    from dynprof.windows.cost_account import CostAccount
    from dynprof.windows.loop import Loop
    from dynprof.windows.this_process import ThisProcess

USUAL_STEP_MS = 100.0
"""Where none has been measured yet."""
SOON_S = 2.0
"""A window that opens within that time is not superseded: some ranks would record it, some not."""


class Participation:
    """Does and answers, on the coordinator's thread.

    Args:
        process: This process.
        inbox: Knows the step.
        loop: Serves windows.
        journal: Is told what became of edits.
        costs: Knows how long steps take.
        edits: Answers what this rank need not agree on.
        state: Returns the state of this rank, as in the status.

    Attributes:
        group: That of which it is a rank.
        heard: The last config that the leader spoke of, and when.
        asked_s, left_s: When it said anything last, and when it was gone, or had gone on.
        is_amid_an_agreement: Whether that is proposed, and it was not said what came of it.
    """

    def __init__(
        self,
        process: ThisProcess,
        inbox: Inbox,
        loop: Loop,
        journal: Journal,
        costs: CostAccount,
        edits: EditHandler,
        state: Callable[[], str],
    ) -> None:
        self._process, self._inbox, self._loop = process, inbox, loop
        self._journal, self._costs, self._edits = journal, costs, edits
        self._state = state
        self.group: JobGroup | None = None
        self.heard, self.asked_s, self.left_s = ("", -math.inf), -math.inf, -math.inf
        self._own: dict[int, Asked] = {}  # what this rank has proposed, where it leads
        self._newest = Proposed(0, 0, None)
        self.numbers = KnownNumbers()
        self._pending = self._ends = self.is_amid_an_agreement = False
        self._plan_made: Plan | None = None  # of what is proposed
        self._pace_ms: float | None = None  # none of late, where it stands still
        self._told_in = 0  # in which numbering the step was told last
        self._has_disarmed = False  # what was proposed, since the newest cancel
        self._cancelled = 0, float("nan")  # by the leader's number, and when it was saved
        self._marks = Marks(inbox)

    def propose(self, number: int, asked: Asked) -> None:
        """Know what this rank is about to propose itself."""
        self._own[number] = asked

    def take_back(self, number: int) -> None:
        """Propose it no more."""
        self._has_disarmed |= self._own.pop(number, None) is not None

    def step_ended(self) -> None:
        """Note where the group stands; on the thread that trains, amid two steps."""
        if self.group:
            self._marks.step_ended(self.group)

    @property
    def is_busy(self) -> bool:
        """Whether a window of this rank is under way, or being saved."""
        return self._loop.occupied

    def stop(self) -> None:
        """Take part in nothing more: the process ends."""
        self._ends = True

    def consider(self, proposal: Proposal) -> Reply:
        """Say whether this rank takes part and can, and whether it is free for a window."""
        if self._ends:
            return self._reply()
        self.is_amid_an_agreement, self._has_disarmed = True, False
        number, asked = self._asked_by(proposal)
        self.heard = proposal.config, time.monotonic()
        self.numbers.know(proposal.number, number)
        saved = proposal.config, proposal.edited_at_s
        self._newest, self._pending = Proposed(proposal.number, number, None, saved), False
        if isinstance(asked, Refusal):
            return self._refuse(number, asked)
        self._newest = self._newest._replace(asked=asked)
        replies: list[Reply] = []
        failed = self._edits.guarded(number, lambda: replies.append(self._plan(number, asked)))
        return self._reply(failed) if failed else replies[0]

    def _plan(self, number: int, asked: Asked) -> Reply:
        """Say whether this rank takes part and can, now that it is known what is asked for."""
        usable = [one for one in self._process.capabilities() if not one.missing]
        could = tuple(Profiler(one.backend, one.activities) for one in usable)
        planned = self._edits.plan(number, asked)
        if isinstance(planned, Refusal):
            return replace(self._refuse(number, planned), usable=could)
        self._pending, self._plan_made = True, planned.plan
        reply = self._reply(takes_part=True)
        would = Profiler(planned.plan.backend, planned.plan.activities)
        return replace(reply, would=would, usable=could)

    def _refuse(self, number: int, refusal: Refusal) -> Reply:
        self._edits.refuse(number, refusal)
        return self._reply("; ".join(map(str, refusal.problems)) if refusal.asked else "")

    def _asked_by(self, proposal: Proposal) -> tuple[int, Asked | Refusal]:
        """Return the number here of what is proposed, and what it asks for."""
        if own := self._own.pop(proposal.number, None):
            return proposal.number, narrowed(own, proposal)
        newest, saved = self._newest, (proposal.config, proposal.edited_at_s)
        known = newest if (newest.leaders, newest.saved) == (proposal.number, saved) else None
        if known and known.asked:  # it is proposed once more, with less
            return known.own, narrowed(known.asked, proposal)
        edit = Edit(proposal.config.encode(), proposal.edited_at_s, is_received=True)
        self._loop.admission.forgive()
        number = known.own if known else self._edits.enter_as(proposal.number, edit)
        try:
            parsed = parse_config(edit.raw)
        except ConfigError as error:  # another version of dynprof leads
            return number, Refusal(error.problems)
        return number, narrowed(Asked(edit, parsed.config, parsed, now=False), proposal)

    def _busy(self) -> str:
        # In the order in which a window comes to be open: else one that just does is not seen.
        if self._opens_soon() or self._loop.occupied:
            return "its window before is not closed and saved"
        return self._loop.admission.refused_by(self._plan_made) if self._plan_made else ""

    def _opens_soon(self) -> bool:
        """Return whether what was agreed before opens before all could be told to forget it."""
        waiting, step_ms = self._inbox.waiting, self._costs.step_ms() or USUAL_STEP_MS
        if waiting is None or waiting.plan.start_step is None:
            return False
        return (waiting.plan.start_step - self._inbox.step) * step_ms / 1e3 < SOON_S

    def where(self, number: int) -> Reply:
        """Say at which step this rank is, and what became of a request."""
        own = self.numbers.own(number)
        answer = None if own is None else self._journal.outcomes.answer(own)
        reply = self._reply(takes_part=self._pending)
        if answer is None:
            return reply
        if answer.outcome not in ON_THE_WAY:
            self.numbers.is_said(number)
        capture = placed(self._process.layout.root, answer.capture) if answer.capture else ""
        why = printable(answer.text.partition("\n")[0])[:300]  # a line
        reply = replace(reply, outcome=answer.outcome, capture=in_utf_8(capture), cut=answer.cut)
        return replace(reply, why=in_utf_8(why))

    def open_at(self, opening: Opening) -> Reply:
        """Open at that step, or say that it is too late."""
        self.is_amid_an_agreement = False
        rank = self.group.rank if self.group else 0
        if by := opening.renumber.get(rank, 0):
            self._inbox.renumber(by)
            self._marks.forget()
        number, asked = self._newest.own, self._newest.asked
        if not self._take_pending(opening.number) or asked is None:
            return self._reply()
        if self._ends:
            self._edits.refuse(number, Refusal((Problem("the process ends."),)))
            return self._reply("its process ends")
        if why := opening.left_out.get(rank):
            self._edits.refuse(number, Refusal((Problem(f"left out by the leader: {why}"),)))
            return self._reply()
        config = asked.config.model_copy(update={"start_step": opening.step})
        self.numbers.owe(opening.number)
        asked = replace(asked, config=config, agreed_in=self._told_in)
        return self._reply(self._serve(number, asked))

    def _serve(self, number: int, asked: Asked) -> str:
        """Have a window opened; return why that cannot be, empty where it can."""
        problems: list[Problem] = []

        def serve() -> None:
            if refused := self._edits.serve(number, asked):
                problems.extend(refused.problems)

        return self._edits.guarded(number, serve) or "; ".join(map(str, problems))

    def wait_no_more_with(self, superseded: Collection[tuple[int, int]]) -> None:
        """Forget what only this rank waits with: it was away, or not asked, as another came."""
        waiting, given_up = self._inbox.waiting, self.numbers.all_own(superseded)
        if waiting and waiting.number in given_up and self._inbox.claim(waiting):
            self._journal.tell(waiting.number, "superseded", "superseded by a newer request")

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Forget what was proposed, and say why."""
        self.is_amid_an_agreement = False
        if withdrawal.config is not None:
            self.heard = withdrawal.config, time.monotonic()
            self._refuse_too(withdrawal, withdrawal.config)
        if self._take_pending(withdrawal.number):
            self._give_up(self._newest.own, withdrawal)
        return self._reply()

    def _refuse_too(self, withdrawal: Withdrawal, config: str) -> None:
        """Answer what was refused where it was saved: nobody has proposed it here."""
        if self.numbers.own(withdrawal.number) is None:
            number = self._edits.enter_as(withdrawal.number, Edit(config.encode(), time.time()))
            self.numbers.know(withdrawal.number, number)
            # No problem of the status: there may be thousands of ranks, and one of them says it.
            self._journal.tell(number, "refused", printable("; ".join(withdrawal.reasons)))

    def _give_up(self, number: int, withdrawal: Withdrawal) -> None:
        if withdrawal.outcome == "refused":
            reasons = [reason.removesuffix(".") for reason in withdrawal.reasons]
            problems = tuple(Problem(f"{reason}; no rank opens.") for reason in reasons)
            self._edits.refuse(number, Refusal(problems))
        else:
            self._has_disarmed |= withdrawal.outcome == "disarmed"
            self._journal.tell(number, withdrawal.outcome, printable("; ".join(withdrawal.reasons)))

    def cancel(self, cancellation: Cancellation) -> Reply:
        """Disarm what waits, close what is open; once, it may be said again for others."""
        number, said = cancellation.number, (cancellation.number, cancellation.edited_at_s)
        if said == self._cancelled:
            return self._reply()
        self._cancelled, self.heard = said, (cancellation.config, time.monotonic())
        if self.group and self.group.rank:
            edit = Edit(cancellation.config.encode(), cancellation.edited_at_s)
            number = self._edits.enter_as(number, edit)
        self._edits.cancel(number, has_disarmed=self._has_disarmed)
        self._has_disarmed = False
        return self._reply()

    def parting(self) -> dict[int, Reply]:
        """Return what became of the newest request, and of those whose end is news."""
        news = {*self.numbers.news(), self._newest.leaders}
        return {number: self.where(number) for number in sorted(news)}

    def left_alone(self, why: str) -> None:
        """Refuse what was proposed: nobody will say what becomes of it."""
        self.is_amid_an_agreement, self.left_s = False, time.monotonic()
        waiting = [self._newest.own] if self._take_pending(self._newest.leaders) else []
        while self._own:
            waiting.append(self._own.popitem()[0])
        self._journal.info(why + ("" if waiting else "; nothing was proposed here"))
        for number in waiting:
            self._edits.refuse(number, Refusal((Problem(f"{why}; save it once more."),)))

    def unasked(self, number: int) -> None:
        """Know that the others could not be asked, before this rank was."""
        if asked := self._own.pop(number, None):
            self._newest, self._pending = Proposed(number, number, asked), True

    def _take_pending(self, leaders: int) -> bool:
        pending, self._pending = self._pending, False
        return pending and self._newest.leaders == leaders

    def _reply(self, problem: str = "", *, takes_part: bool = False) -> Reply:
        self._inbox.knock()  # so that the mark is of now
        self.asked_s = time.monotonic()
        takes_part = takes_part and not problem
        self._pace_ms = self._costs.step_ms() or self._pace_ms
        self._told_in = self._inbox.numbering  # first: the script may go on from another number
        return Reply(
            rank=self.group.rank if self.group else 0,
            problem=problem,
            takes_part=takes_part,
            busy=self._busy() if takes_part else "",
            step=self._inbox.numbered,
            step_s=None if self._pace_ms is None else self._pace_ms / 1e3,
            still_s=self._costs.still_s(),
            at_s=self.asked_s,
            host=self._process.layout.host,
            state=self._state(),
            mark=self._marks.newest,
            newest=self._journal.outcomes.newest,
        )

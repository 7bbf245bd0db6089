"""The leader's side of an agreement: who can, where are you, open there."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dynprof.coordination.choice import chosen_ranks, common_profiler, unable, why_not
from dynprof.coordination.messages import Mark, Opening, Question, Withdrawal
from dynprof.coordination.participant import answer
from dynprof.coordination.start_step import Place, start_step
from dynprof.coordination.step_numbers import ahead, far_apart, renumbered

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dynprof.config import RankSet
    from dynprof.coordination.messages import Message, Proposal, Reply
    from dynprof.coordination.participant import Participant
    from dynprof.coordination.speaker import Speaker

LEADER = 0
"""The rank that leads."""
SOON_S = 5.0
"""A rank that is free answers within that time, or is away."""
LEAST_LEAD_S = 0.1
LEAST_APART_S = 0.001
"""Nothing is told of a pace by two answers that come closer to each other."""
LEAD_ROUNDS = 4
"""The lead is so many times what it has just taken to hear where all are."""
NUMBERS_S = 2.0
"""So long, once, a window waits for what tells how a rank counts its steps."""
OLD_S = 2.0
"""Where ranks were so long ago tells nothing of how fast they go now."""
JOIN_S = 10.0
"""After its begin the leader waits so long for ranks that do not listen yet."""
LOOK_AGAIN_S = 0.05
ON_THE_WAY = {"waiting", "open", "saving"}
NO_DYNPROF, SILENT = "it does not run dynprof", "it did not answer in time"
MARKS = 2
"""Newest that are kept of each rank."""


@dataclass(frozen=True)
class Terms:
    """What an operator asks of the ranks together.

    Attributes:
        ranks: Those that shall record.
        start: The step that he names; None where he leaves that to the ranks.
        multiple: What is to divide the step.
        downgrade: Where one cannot serve it, or with less than others: whether all are to record
            what they have in common; else none does.
    """

    ranks: RankSet
    start: int | None = None
    multiple: int = 1
    downgrade: bool = False


@dataclass(frozen=True)
class Agreement:
    """What came of a proposal.

    Attributes:
        number: Of the request.
        step: At which all open; None where nobody does.
        ranks: Who takes part.
        left_out: Who was asked for and does not, and why.
        reasons: Why nobody opens; empty where they do.
        took_s: From the proposal until all had been told.
        renumbered: By how many each rank's numbers of steps were changed to the leader's.
        remarks: What else is to be said.
    """

    number: int
    step: int | None
    ranks: tuple[int, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    took_s: float = 0.0
    renumbered: Mapping[int, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class _NoWindowError(Exception):
    """There will be none; the reasons are its arguments."""


class Leader:
    """Has all ranks open a window at one step, or none.

    Args:
        speaker: Talks to the others.
        me: The leader's own rank.
        world_size: How many ranks the job has.
        clock: Returns monotonic seconds.
        sleep: Waits so many.
    """

    def __init__(
        self,
        speaker: Speaker,
        me: Participant,
        world_size: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._speaker, self._me, self._world_size = speaker, me, world_size
        self._clock, self._sleep = clock, sleep
        self._began_s = clock()
        self._marks: dict[int, tuple[Mark, ...]] = {}
        self._unmarked: set[int] = set()  # has been waited for in vain
        self._told: dict[int, int] = {}  # at which step the newest request opens

    def agree(self, proposal: Proposal, terms: Terms, earlier: int = 0) -> Agreement:
        """Bring the ranks to agree on what the leader's operator asks for.

        Args:
            proposal: What that is.
            terms: What it asks of the ranks together.
            earlier: A request with whose window ranks are on their way; 0 for none.
        """
        began_s, number = self._clock(), proposal.number
        left_out: dict[int, str] = {}
        try:
            proposal, wanted = self._choose(proposal, terms.ranks)
            left_out |= self._not_there(wanted)
            proposed_s = self._clock()
            replies = self._all_can(proposal, downgrade=terms.downgrade)
            left_out |= dict.fromkeys(wanted - replies.keys() - left_out.keys(), SILENT)
            ready = {rank for rank, one in replies.items() if one.takes_part}
            if self._clock() - proposed_s > OLD_S:
                replies = self.roll_call(number)
            made = self._settle(proposal, earlier, replies, ready, left_out, terms)
        except _NoWindowError as error:
            self.tell(Withdrawal(number, error.args))
            made = Agreement(number, None, (), left_out, error.args)
        return replace(made, took_s=self._clock() - began_s)

    def _choose(self, proposal: Proposal, asked: RankSet) -> tuple[Proposal, set[int]]:
        """Return the proposal with the ranks by their numbers, and who they are."""
        if asked.chosen:
            try:
                asked = chosen_ranks(asked, self.roll_call(proposal.number))
            except ValueError as error:
                raise _NoWindowError(str(error)) from None
            proposal = replace(proposal, ranks=str(asked))
        return proposal, {rank for rank in range(self._world_size) if rank in asked}

    def _all_can(self, proposal: Proposal, *, downgrade: bool) -> dict[int, Reply]:
        """Propose it, and less where that is wanted; return the replies where nobody is unable."""
        replies = self._ask(proposal, proposal.patience_s)
        problems = unable(replies)
        if problems and downgrade:
            of_each = [one.usable for one in replies.values() if one.takes_part or one.problem]
            if profiler := common_profiler(of_each):
                less = replace(proposal, profiler=profiler)
                replies = self._ask(less, proposal.patience_s)
                problems = unable(replies)
        if problems:
            raise _NoWindowError(*why_not(problems))
        return replies

    def _let_record(self, ranks: set[int], earlier: int, patience_s: float) -> None:
        """Wait for ranks on their way through a window that opens before all know of the next.

        Where a rank has yet to open it, it would supersede it, and others would not.

        Args:
            ranks: Who is to take part in the next.
            earlier: The request of that window.
            patience_s: So long they have time.

        Raises:
            _NoWindowError: It is not over then.
        """
        until_s = self._clock() + patience_s
        while True:
            found = self.roll_call(earlier)
            if not any(found[rank].outcome in ON_THE_WAY for rank in ranks & found.keys()):
                return
            if self._clock() >= until_s:
                raise _NoWindowError(f"the window of request {earlier} opens first, and lasts")
            self._sleep(LOOK_AGAIN_S)

    def tell(self, message: Message) -> dict[int, Reply]:
        """Tell all, this rank included, what needs no agreement; return what they say."""
        return self._ask(message, SOON_S)

    def roll_call(self, number: int, patience_s: float = SOON_S) -> dict[int, Reply]:
        """Ask all ranks where they are; who does not say so in time is missing.

        Who has parted has said of his newest requests what became of them.

        Args:
            number: The request of which they are to say what became of it.
            patience_s: So long they have time.
        """
        replies = self._ask(Question(number), patience_s)
        return {**self._speaker.last_words(number), **replies}

    def _settle(
        self,
        proposal: Proposal,
        earlier: int,
        before: Mapping[int, Reply],
        ready: set[int],
        left_out: dict[int, str],
        terms: Terms,
    ) -> Agreement:
        """Find the step, now that all are free, and tell it to all."""
        number = proposal.number
        if not ready:
            raise _NoWindowError("no rank takes part")
        before = self._learn_numbers(number, before, ready)
        places, lead_s = self._places(number, before, ready)
        if earlier and start_step(places, lead_s) > self._told.get(earlier, -1):
            self._let_record(ready, earlier, proposal.patience_s)
            places, lead_s = self._places(number, self.roll_call(number), ready)
        left_out |= dict.fromkeys(ready - {place.rank for place in places}, SILENT)
        ready = {place.rank for place in places}
        sure = ahead(self._marks, LEADER)
        renumber = {rank: -by for rank, by in sure.items() if by}
        places = [place.renumbered(renumber.get(place.rank, 0)) for place in places]
        try:
            step = start_step(places, lead_s, terms.start, terms.multiple)
        except ValueError as error:
            raise _NoWindowError(f"step {terms.start} has begun already: {error}") from None
        said = self.tell(Opening(number, step, left_out, renumber))
        self._told = {number: step}
        if renumber:
            self._marks.clear()
        late = {rank: said[rank].problem if rank in said else SILENT for rank in ready}
        left_out |= {rank: why for rank, why in late.items() if why}
        ranks = tuple(sorted(ready - left_out.keys()))
        remarks = (*renumbered(renumber), *far_apart(places, sure))
        return Agreement(number, step, ranks, left_out, renumbered=renumber, remarks=remarks)

    def _learn_numbers(
        self, number: int, before: Mapping[int, Reply], ready: set[int]
    ) -> Mapping[int, Reply]:
        """Wait a little for what tells how ranks count that were not asked before."""
        until_s = self._clock() + NUMBERS_S
        while unknown := {
            rank for rank in {LEADER, *ready} if len(self._marks.get(rank, ())) < MARKS
        }:
            if self._clock() > until_s or unknown <= self._unmarked:
                self._unmarked |= unknown
                break
            self._sleep(LEAST_LEAD_S)
            before = self.roll_call(number)
        return before

    def _places(
        self, number: int, before: Mapping[int, Reply], ready: set[int]
    ) -> tuple[list[Place], float]:
        """Ask once more where ranks are; return that, and how long it takes to tell all of them."""
        self._sleep(LEAST_LEAD_S)
        for _ in range(3):  # who just falls silent makes that last, and need not be told
            away, again_s = set(self._speaker.away), self._clock()
            now = self.roll_call(number)
            lead_s = max(LEAST_LEAD_S, LEAD_ROUNDS * (self._clock() - again_s))
            if self._speaker.away <= away:
                break
        found = [
            Place(
                rank,
                now[rank].step,
                max(0, now[rank].step - before[rank].step),
                max(LEAST_APART_S, now[rank].at_s - before[rank].at_s),
                now[rank].step_s,
                now[rank].still_s,
            )
            for rank in sorted(ready & before.keys() & now.keys())
        ]
        return found, lead_s

    def _not_there(self, wanted: set[int]) -> dict[int, str]:
        """Return who is asked for and need not be waited for."""
        others = wanted - {LEADER}
        while absent := others - self._speaker.listeners() - self._speaker.away:
            if self._clock() > self._began_s + JOIN_S:
                break
            self._sleep(LOOK_AGAIN_S)
        absent |= others & self._speaker.away
        return {
            rank: SILENT if rank in self._speaker.away else NO_DYNPROF for rank in sorted(absent)
        }

    def _ask(self, message: Message, patience_s: float) -> dict[int, Reply]:
        place = self._speaker.say(message)
        mine = answer(self._me, message)
        replies = {**self._speaker.replies(place, patience_s), mine.rank: mine}
        for rank, one in replies.items():
            self._note(rank, one.mark)
        return replies

    def _note(self, rank: int, mark: Mark | None) -> None:
        """Keep the newest marks of a rank; where it counts anew, those from then on."""
        before = self._marks.get(rank, ())
        if mark is None or mark in before:
            return
        if before and mark.step <= before[-1].step:
            before = ()
        self._marks[rank] = (*before, mark)[-MARKS:]

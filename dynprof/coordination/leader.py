"""The leader's side of an agreement: who can, where are you, open there."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.coordination.choice import chosen_ranks, common_profiler, unable, why_not
from dynprof.coordination.messages import Opening, Withdrawal
from dynprof.coordination.pace import Pace
from dynprof.coordination.patience import held_up
from dynprof.coordination.roll import LOOK_AGAIN_S, ON_THE_WAY, SOON_S, Roll
from dynprof.coordination.start_step import Place, start_step
from dynprof.coordination.step_numbers import far_apart, perhaps_otherwise, renumbered
from dynprof.coordination.terms import LEADER, Agreement, NoWindowError, Told

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from dynprof.config import RankSet
    from dynprof.coordination.messages import Message, Proposal, Reply
    from dynprof.coordination.participant import Participant
    from dynprof.coordination.speaker import Speaker
    from dynprof.coordination.terms import Terms

LEAST_LEAD_S, APART_S = 0.25, 0.1
"""All have at least so long to be told when to open, however fast they were when asked where they
are; for which they are asked twice, so far apart."""
LEAST_APART_S = 0.001
"""Nothing is told of a pace by two answers that come closer to each other."""
LEAD_ROUNDS = 4
"""The lead is so many times what it has just taken to hear where all are."""
NUMBERS_S = 2.0
"""So long, once, a window waits for what tells how a rank counts its steps."""
OLD_S = 2.0
"""Where ranks were so long ago tells nothing of how fast they go now."""
LONGEST_LOOK_S = 0.5
"""Between two looks at who is not ready."""


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
        self._world_size = world_size
        self._apart_s = max(0.0, APART_S - speaker.unheard_s)
        self._clock, self._sleep = clock, sleep
        self._roll = Roll(speaker, me, clock, sleep)
        self._unmarked: set[int] = set()  # has been waited for in vain
        self._told: dict[int, Told] = {}  # of the newest, and of those that were on their way then
        self._until_s = 0.0  # ranks are waited for now
        self._meanwhile: Callable[[Mapping[int, str]], object] = bool

    def agree(
        self,
        proposal: Proposal,
        terms: Terms,
        earlier: Collection[int] = (),
        meanwhile: Callable[[Mapping[int, str]], object] = bool,
    ) -> Agreement:
        """Bring the ranks to agree on what the leader's operator asks for.

        Args:
            proposal: What that is.
            terms: What it asks of the ranks together.
            earlier: The requests with whose windows ranks are on their way.
            meanwhile: Called while ranks are waited for, with why each is; raises where that is
                asked for no more.
        """
        began_s, number = self._clock(), proposal.number
        self._until_s, self._meanwhile = began_s + proposal.patience_s, meanwhile
        left_out: dict[int, str] = {}
        try:
            proposal, wanted = self._choose(proposal, terms.ranks)
            left_out |= self._roll.not_there(wanted)
            made = None
            while made is None:
                replies, why = self._wait_for(proposal, wanted - left_out.keys(), terms)
                made = self._settle(proposal, earlier, replies, {**left_out, **why}, terms)
        except NoWindowError as error:
            self._roll.tell(Withdrawal(number, error.args, outcome=error.outcome))
            made = Agreement(number, None, (), left_out, error.args, outcome=error.outcome)
        return replace(made, took_s=self._clock() - began_s)

    def _choose(self, proposal: Proposal, asked: RankSet) -> tuple[Proposal, set[int]]:
        """Return the proposal with the ranks by their numbers, and who they are."""
        if asked.chosen:
            try:
                there = self._roll.where(proposal.number)
                asked = chosen_ranks(asked, there, self._world_size)
            except ValueError as error:
                raise NoWindowError(str(error)) from None
            proposal = replace(proposal, ranks=str(asked))
        return proposal, {rank for rank in range(self._world_size) if rank in asked}

    def _wait_for(
        self, proposal: Proposal, wanted: set[int], terms: Terms
    ) -> tuple[dict[int, Reply], dict[int, str]]:
        """Propose it, and wait for who is not ready; return where all are, and who never was.

        Who has not heard of it, or knows of it no more, and answers now, is proposed to.
        """
        asked_s, pace = self._clock(), Pace(LOOK_AGAIN_S, LONGEST_LOOK_S)
        replies = proposed = self._all_can(proposal, downgrade=terms.downgrade)
        while True:
            silent = wanted - replies.keys() - self._roll.long_silent(proposal.patience_s)
            waits = held_up(replies, silent, may_stand=terms.start is not None)
            if not waits or self._clock() >= self._until_s:
                break
            self._meanwhile(waits)
            self._sleep(pace.pause_s())
            replies = self._roll.where(proposal.number)
            if wanted & ((replies.keys() - proposed.keys()) | _forgetful(proposed, replies)):
                replies = proposed = self._all_can(proposal, downgrade=terms.downgrade)
        if self._clock() > asked_s + OLD_S:
            replies = self._roll.where(proposal.number)
        of_its_own = {rank for rank, one in proposed.items() if not one.takes_part}
        lost = wanted - _taking_part(replies) - of_its_own - waits.keys()
        return replies, waits | {rank: self._roll.why_lost(rank) for rank in lost}

    def _all_can(self, proposal: Proposal, *, downgrade: bool) -> dict[int, Reply]:
        """Propose it, and less where that is wanted; return the replies where nobody is unable."""
        replies = self._roll.ask(proposal, min(SOON_S, proposal.patience_s))
        problems = unable(replies)
        if problems and downgrade:
            of_each = [one.usable for one in replies.values() if one.takes_part or one.problem]
            if profiler := common_profiler(of_each):
                less = replace(proposal, profiler=profiler)
                replies = self._roll.ask(less, min(SOON_S, proposal.patience_s))
                problems = unable(replies)
        if problems:
            raise NoWindowError(*why_not(problems))
        return replies

    def _let_record(self, ranks: set[int], earlier: int, patience_s: float) -> dict[int, str]:
        """Wait for ranks on their way through a window that opens before all know of the next.

        Where a rank has yet to open it, it would supersede it, and others would not.

        Args:
            ranks: Who is to take part in the next.
            earlier: The request of that window.
            patience_s: So long they have time.

        Returns:
            Who took longer, and why.
        """
        until_s = self._clock() + patience_s
        while True:
            found = self.roll_call(earlier)
            late = {rank for rank in ranks & found.keys() if found[rank].outcome in ON_THE_WAY}
            why = dict.fromkeys(late, f"the window of request {earlier} opens first there")
            if not late or self._clock() >= until_s:
                return why
            self._meanwhile(why)
            self._sleep(LOOK_AGAIN_S)

    def tell(self, message: Message) -> dict[int, Reply]:
        """Tell all, this rank included, what needs no agreement; return what they say."""
        return self._roll.tell(message)

    def roll_call(self, number: int, patience_s: float = SOON_S) -> dict[int, Reply]:
        """Ask all ranks where they are; who does not say so in time is missing.

        Who has parted has said of his newest requests what became of them.

        Args:
            number: The request of which they are to say what became of it.
            patience_s: So long they have time.
        """
        return self._roll.call(number, patience_s)

    def _settle(
        self,
        proposal: Proposal,
        earlier: Collection[int],
        before: Mapping[int, Reply],
        left_out: dict[int, str],
        terms: Terms,
    ) -> Agreement | None:
        """Find the step, now that all are free, and tell it to all.

        None where somebody has fallen silent meanwhile who may yet come back in time, or has
        and knows of it no more.
        """
        number = proposal.number
        ready, on_the_way = _taking_part(before) - left_out.keys(), earlier
        _insist_on(ready, left_out)
        self._roll.numbers.ask_anew()
        places, lead_s = self._places(number, before, ready)
        if later := self._learn_numbers(number, ready):
            before = later
            places, lead_s = self._places(number, before, ready)
        while first := self._opening_first(earlier, start_step(places, lead_s)):
            earlier = {*earlier} - first
            for one in sorted(first):
                left_out |= self._let_record(ready, one, proposal.patience_s)
            now = self._roll.where(number)
            forgetful = ready & _forgetful(before, now) - left_out.keys()
            if forgetful and self._clock() < self._until_s:
                return None
            left_out |= {rank: self._roll.why_lost(rank) for rank in forgetful}
            places, lead_s = self._places(number, now, ready - left_out.keys())
        there = {place.rank for place in places}
        gone = ready - there - left_out.keys()
        silent = gone & self._roll.away - self._roll.long_silent(proposal.patience_s)
        if silent and self._clock() < self._until_s:
            return None
        left_out |= {rank: self._roll.why_lost(rank) for rank in gone}
        _insist_on(there, left_out)
        sure, perhaps = self._roll.numbers.ahead()
        perhaps = {rank: by for rank, by in perhaps.items() if rank in there}
        renumber = {rank: -by for rank, by in sure.items() if by}
        places = [place.renumbered(renumber.get(place.rank, 0)) for place in places]
        try:
            step = start_step(places, lead_s, terms.start, terms.multiple)
        except ValueError as error:
            raise NoWindowError(f"step {terms.start} has begun already: {error}") from None
        self._roll.supersede(one for one in earlier if self._told[one].ranks & there)
        opening = Opening(number, step, left_out, renumber, self._roll.superseded)
        said = self._roll.tell(opening)
        wait = {one: told for one, told in self._told.items() if one in on_the_way}
        self._told = {**wait, number: Told(step, frozenset(there))}
        if renumber:
            self._roll.numbers.forget()
        lost = {rank for rank in there if rank not in said or said[rank].problem}
        left_out |= {rank: self._roll.why_lost(rank) for rank in lost}
        ranks = tuple(sorted(there - left_out.keys()))
        remarks = (
            *renumbered(renumber),
            *perhaps_otherwise(perhaps),
            *far_apart(places, {**sure, **perhaps}),
        )
        return Agreement(number, step, ranks, left_out, renumbered=renumber, remarks=remarks)

    def _opening_first(self, earlier: Collection[int], step: int) -> set[int]:
        """Return which windows open before that step, or may."""
        return {one for one in earlier if step > self._told.get(one, Told()).step}

    def _learn_numbers(self, number: int, ready: set[int]) -> Mapping[int, Reply]:
        """Wait a little, once, for what tells how ranks count now; return where they are then."""
        numbers, others = self._roll.numbers, ready - {LEADER}
        self._unmarked -= {rank for rank in others if numbers.knows(rank)}
        until_s = self._clock() + NUMBERS_S
        later: Mapping[int, Reply] = {}
        while unknown := {rank for rank in others if not numbers.knows(rank, anew=True)}:
            if self._clock() > until_s or unknown <= self._unmarked:
                self._unmarked |= unknown
                break
            self._sleep(APART_S)
            later = self._roll.where(number)
        return later

    def _places(
        self, number: int, before: Mapping[int, Reply], ready: set[int]
    ) -> tuple[list[Place], float]:
        """Ask once more where ranks are; return that, and how long it takes to tell all of them."""
        self._sleep(self._apart_s)
        for _ in range(3):  # who just falls silent makes that last, and need not be told
            away, again_s = set(self._roll.away), self._clock()
            now = self._roll.where(number)
            lead_s = max(LEAST_LEAD_S, LEAD_ROUNDS * (self._clock() - again_s))
            if self._roll.away <= away:
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
            if not (before[rank].problem or now[rank].problem)
        ]
        return found, lead_s


def _taking_part(replies: Mapping[int, Reply]) -> set[int]:
    return {rank for rank, one in replies.items() if one.takes_part}


def _forgetful(before: Mapping[int, Reply], now: Mapping[int, Reply]) -> set[int]:
    """Return who was to take part and knows nothing of it: it was away, and has joined anew."""
    still = {rank for rank, one in now.items() if one.takes_part or one.problem}
    return (_taking_part(before) & now.keys()) - still


def _insist_on(ranks: set[int], left_out: Mapping[int, str]) -> None:
    """Raise where nobody is left who could open."""
    if not ranks:
        raise NoWindowError(*why_not(left_out) or ("no rank takes part",))

"""The leader's side of an agreement: who can, where are you, open there."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.coordination.messages import Opening, Question, Withdrawal
from dynprof.coordination.participant import answer
from dynprof.coordination.start_step import Place, start_step
from dynprof.plural import listed_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dynprof.coordination.messages import Message, Proposal, Reply
    from dynprof.coordination.participant import Participant
    from dynprof.coordination.shared_log import Speaker

LEADER = 0
"""The rank that leads."""
SOON_S = 5.0
"""A rank that is free answers within that time, or is away."""
LEAST_LEAD_S = 0.1
LEAD_ROUNDS = 4
"""The lead is so many times what it has just taken to hear where all are."""
JOIN_S = 10.0
"""After its begin the leader waits so long for ranks that do not listen yet."""
LOOK_AGAIN_S = 0.05
NO_DYNPROF, SILENT = "it does not run dynprof", "it did not answer in time"


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
    """

    number: int
    step: int | None
    ranks: tuple[int, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    took_s: float = 0.0


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

    def agree(
        self, proposal: Proposal, asks: Callable[[int], bool], start: int | None = None
    ) -> Agreement:
        """Bring the ranks to agree on what the leader's operator asks for.

        Args:
            proposal: What that is.
            asks: Whether it asks for a rank.
            start: The step that the operator names; None where he leaves that to the ranks.
        """
        began_s = self._clock()
        wanted = {rank for rank in range(self._world_size) if asks(rank)}
        left_out = self._not_there(wanted)
        replies = self._ask(proposal, proposal.patience_s)
        left_out |= dict.fromkeys(wanted - replies.keys() - left_out.keys(), SILENT)
        if unable := {rank: one.problem for rank, one in replies.items() if one.problem}:
            return self._withdraw(proposal.number, _why_not(unable), left_out, began_s)
        ready = {rank for rank, one in replies.items() if one.takes_part}
        if not ready:
            return self._withdraw(proposal.number, ("no rank takes part",), left_out, began_s)
        return self._settle(proposal.number, ready, left_out, start, began_s)

    def tell(self, message: Message) -> dict[int, Reply]:
        """Tell all, this rank included, what needs no agreement; return what they say."""
        return self._ask(message, SOON_S)

    def roll_call(self, number: int) -> dict[int, Reply]:
        """Ask all ranks where they are; who does not say so in time is missing.

        Args:
            number: The request of which they are to say what became of it.
        """
        return self._ask(Question(number), SOON_S)

    def _settle(
        self,
        number: int,
        ready: set[int],
        left_out: dict[int, str],
        start: int | None,
        began_s: float,
    ) -> Agreement:
        """Find the step, now that all are free, and tell it to all."""
        places, lead_s = self._places(number, ready)
        left_out |= dict.fromkeys(ready - {place.rank for place in places}, SILENT)
        ready = {place.rank for place in places}
        try:
            step = start_step(places, lead_s, start)
        except ValueError as error:
            text = f"step {start} has begun already: {error}"
            return self._withdraw(number, (text,), left_out, began_s)
        said = self._ask(Opening(number, step, left_out), SOON_S)
        late = {rank: said[rank].problem if rank in said else SILENT for rank in ready}
        left_out |= {rank: why for rank, why in late.items() if why}
        ranks = tuple(sorted(ready - left_out.keys()))
        return Agreement(number, step, ranks, left_out, (), self._clock() - began_s)

    def _places(self, number: int, ready: set[int]) -> tuple[list[Place], float]:
        """Ask twice where the ranks are; return it, and how long it takes to tell all of them."""
        first_s = self._clock()
        before = self._ask(Question(number), SOON_S)
        lead_s = max(LEAST_LEAD_S, LEAD_ROUNDS * (self._clock() - first_s))
        self._sleep(lead_s)
        again_s = self._clock()
        now = self._ask(Question(number), SOON_S)
        lead_s = max(lead_s, LEAD_ROUNDS * (self._clock() - again_s))
        found = [
            Place(
                rank,
                now[rank].step,
                max(0, now[rank].step - before[rank].step),
                again_s - first_s,
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
        return {**self._speaker.replies(place, patience_s), mine.rank: mine}

    def _withdraw(
        self, number: int, reasons: tuple[str, ...], left_out: dict[int, str], began_s: float
    ) -> Agreement:
        self._ask(Withdrawal(number, reasons), SOON_S)
        return Agreement(number, None, (), left_out, reasons, self._clock() - began_s)


def _why_not(unable: Mapping[int, str]) -> tuple[str, ...]:
    """Return each reason once, with the ranks that have it."""
    by_reason: dict[str, list[int]] = {}
    for rank, problem in sorted(unable.items()):
        by_reason.setdefault(problem, []).append(rank)
    return tuple(f"{listed_ranks(ranks)}: {problem}" for problem, ranks in by_reason.items())

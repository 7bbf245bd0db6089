"""Who of the ranks listens, answers, has fallen silent or left; what is told to all and asked."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.coordination.messages import Cancellation, Proposal, Question
from dynprof.coordination.participant import answer
from dynprof.coordination.step_numbers import StepNumbers
from dynprof.coordination.terms import LEADER, NO_DYNPROF, PARTED, SILENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dynprof.coordination.messages import Message, Reply
    from dynprof.coordination.participant import Participant
    from dynprof.coordination.speaker import Speaker

SOON_S = 5.0
"""A rank answers within that time, or is away."""
JOIN_S = 10.0
"""After its begin the leader waits so long for ranks that do not listen yet."""
LOOK_AGAIN_S = 0.05
ON_THE_WAY = {"waiting", "open", "saving"}
"""What a rank says of a window that is not over there."""


class Roll:
    """All ranks, as the leader asks them.

    Args:
        speaker: Talks to the others.
        me: The leader's own rank.
        clock: Returns monotonic seconds.
        sleep: Waits so many.

    Attributes:
        numbers: How ranks count their steps.
    """

    def __init__(
        self,
        speaker: Speaker,
        me: Participant,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._speaker, self._me, self._clock, self._sleep = speaker, me, clock, sleep
        self._began_s = clock()
        self._silent: dict[int, float] = {}  # since when, of those that are away
        self._problems: dict[int, str] = {}  # since the newest proposal
        self._cancellation: Cancellation | None = None  # the newest
        self._unaware: set[int] = set()  # who was silent as it was said
        self.numbers = StepNumbers(LEADER)
        self._superseded: list[tuple[int, int]] = []

    @property
    def superseded(self) -> tuple[tuple[int, int], ...]:
        """The requests in whose place others have come, as a question says it."""
        return tuple(self._superseded)

    def supersede(self, numbers: Iterable[int]) -> None:
        """Have nobody wait with those any more."""
        spans = sorted([*self._superseded, *((number, number) for number in numbers)])
        self._superseded = spans[:1]
        for low, high in spans[1:]:
            first, last = self._superseded[-1]
            if low <= last + 1:
                self._superseded[-1] = first, max(last, high)
            else:
                self._superseded.append((low, high))

    @property
    def away(self) -> set[int]:
        """Who did not answer in time, and has not caught up."""
        return set(self._speaker.away)

    def tell(self, message: Message) -> dict[int, Reply]:
        """Tell all, this rank included; return what they say to it."""
        return self.ask(message, SOON_S)

    def where(self, number: int, patience_s: float = SOON_S) -> dict[int, Reply]:
        """Ask where all are that listen, and what became of a request there."""
        replies = self.ask(Question(number, self.superseded), patience_s)
        self.numbers.see(replies)
        return replies

    def call(self, number: int, patience_s: float) -> dict[int, Reply]:
        """Ask the same; of those that have parted, what they said last.

        One that has begun anew since knows nothing of the request: what had come of it stands.
        """
        replies = self.where(number, patience_s)
        last, parted = self._speaker.last_words(number), self._speaker.parted
        found = {rank: one for rank, one in last.items() if rank in parted} | replies
        for rank in last.keys() & replies.keys():
            now, then = replies[rank], last[rank]
            if not now.outcome and then.outcome not in ON_THE_WAY:
                found[rank] = replace(
                    now, outcome=then.outcome, capture=then.capture, cut=then.cut, why=then.why
                )
        return found

    def ask(self, message: Message, patience_s: float) -> dict[int, Reply]:
        """Say something to all, this rank included; return what they say to it in time."""
        asked_s = self._clock()
        # Of where all are, this one first: so the others are known to have been asked later.
        first = answer(self._me, message) if isinstance(message, Question) else None
        place = self._speaker.say(message)
        mine = first or answer(self._me, message)
        replies = {**self._speaker.replies(place, patience_s), mine.rank: mine}
        self.numbers.hear(replies)
        if isinstance(message, Proposal):
            self._problems.clear()
        self._problems |= {rank: one.problem for rank, one in replies.items() if one.problem}
        self._silent = {rank: self._silent.get(rank, asked_s) for rank in self._speaker.away}
        if isinstance(message, Cancellation):
            self._cancellation, self._unaware = message, self.away
        elif self._cancellation and self._unaware & replies.keys():
            # At once: what is agreed on from here on is not meant. Who has heard it does nothing.
            self.tell(self._cancellation)
        return replies

    def not_there(self, wanted: set[int]) -> dict[int, str]:
        """Return who is asked for and cannot be proposed to; for a moment they may yet join."""
        others = wanted - {LEADER}
        while absent := others - self._speaker.listeners() - self._speaker.away:
            absent -= self._speaker.parted
            if not absent or self._clock() > self._began_s + JOIN_S:
                break
            self._sleep(LOOK_AGAIN_S)
        gone = dict.fromkeys(others & self._speaker.parted, PARTED)
        return {**dict.fromkeys(sorted(absent), NO_DYNPROF), **gone}

    def long_silent(self, patience_s: float) -> set[int]:
        """Return who has parted, or has been silent for so long that it is not waited for."""
        late_s = self._clock() - patience_s
        silent = {rank for rank, since_s in self._silent.items() if since_s <= late_s}
        return silent | self._speaker.parted

    def why_lost(self, rank: int) -> str:
        """Say why a rank takes part no more since it was proposed to."""
        if problem := self._problems.get(rank):
            return problem
        return PARTED if rank in self._speaker.parted else SILENT

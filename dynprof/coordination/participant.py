"""What each rank does with what the leader says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dynprof.coordination.messages import (
    Cancellation,
    Message,
    Opening,
    Proposal,
    Question,
    Reply,
    Withdrawal,
)
from dynprof.errors import failed_at_it

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from dynprof.wall import Wall


class Participant(Protocol):
    """A rank, as the agreement sees it; its methods may wait, but for no rank else."""

    def consider(self, proposal: Proposal) -> Reply:
        """Say whether it takes part and can, once it is free for a window."""

    def where(self, number: int) -> Reply:
        """Say at which step it is, and what became of a request."""

    def wait_no_more_with(self, superseded: Collection[tuple[int, int]]) -> None:
        """Forget those requests, from one to another, that have an agreed step and wait for it."""

    def open_at(self, opening: Opening) -> Reply:
        """Open at that step, or say that it is too late."""

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Forget what was proposed."""

    def cancel(self, cancellation: Cancellation) -> Reply:
        """Disarm what waits, close what is open."""

    def parting(self) -> dict[int, Reply]:
        """Return what became of requests that the leader may not know of, the newest included."""

    def left_alone(self, why: str) -> None:
        """Forget what was proposed: nobody will say what becomes of it."""


class Walled:
    """A participant that raises nothing: what fails is written down, and said as its problem.

    Else one odd moment of one rank would end what it agrees on for good.

    Args:
        me: The participant.
        rank: Its number.
        wall: Keeps the failures.
    """

    def __init__(self, me: Participant, rank: int, wall: Wall) -> None:
        self._me, self._rank, self._wall = me, rank, wall

    def consider(self, proposal: Proposal) -> Reply:
        """Say whether it takes part and can."""
        return self._said("considering a proposal", lambda: self._me.consider(proposal))

    def where(self, number: int) -> Reply:
        """Say at which step it is."""
        return self._said("saying where it is", lambda: self._me.where(number))

    def wait_no_more_with(self, superseded: Collection[tuple[int, int]]) -> None:
        """Forget those of some requests that are not open yet."""
        self._wall.attempt("forgetting", lambda: self._me.wait_no_more_with(superseded))

    def open_at(self, opening: Opening) -> Reply:
        """Open at that step."""
        return self._said("opening at a step", lambda: self._me.open_at(opening))

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Forget what was proposed."""
        return self._said("forgetting a proposal", lambda: self._me.withdraw(withdrawal))

    def cancel(self, cancellation: Cancellation) -> Reply:
        """Disarm what waits, close what is open."""
        return self._said("cancelling", lambda: self._me.cancel(cancellation))

    def parting(self) -> dict[int, Reply]:
        """Return what became of requests; nothing where that fails."""
        found: dict[int, Reply] = {}
        self._wall.attempt("parting", lambda: found.update(self._me.parting()))
        return found

    def left_alone(self, why: str) -> None:
        """Forget what was proposed."""
        self._wall.attempt("going on alone", lambda: self._me.left_alone(why))

    def _said(self, doing: str, action: Callable[[], Reply]) -> Reply:
        found: list[Reply] = []
        error = self._wall.attempt(f"{doing}, for all ranks,", lambda: found.append(action()))
        return Reply(self._rank, failed_at_it(error)) if error else found[0]


def answer(participant: Participant, message: Message) -> Reply:
    """Have a rank do what it is told, and return what it says to it."""
    if isinstance(message, Proposal):
        return participant.consider(message)
    if isinstance(message, Opening):
        reply = participant.open_at(message)  # first: that may take the place of one of them
        participant.wait_no_more_with(message.superseded)
        return reply
    if isinstance(message, Withdrawal):
        return participant.withdraw(message)
    if isinstance(message, Cancellation):
        return participant.cancel(message)
    if isinstance(message, Question):
        participant.wait_no_more_with(message.superseded)
        return participant.where(message.number)
    return participant.where(0)


class RollKeeper(Protocol):
    """Where the leader's rank learns of the others; called on the leader's thread."""

    @property
    def number(self) -> int:
        """The request to ask about next: the newest, or one that is not over; 0 for none."""

    @property
    def under_way(self) -> int:
        """How many windows are to be asked about, if ranks are on their way with any."""

    @property
    def unheard(self) -> bool:
        """Whether ranks are missing that may have recorded a window, and say so yet."""

    @property
    def waits(self) -> tuple[int, ...]:
        """The requests with whose windows ranks are on their way."""

    @property
    def stands(self) -> bool:
        """Whether no rank that is on its way with a window steps or saves."""

    def leave(self) -> None:
        """Hear no more what becomes of windows."""

    def wait_for(self, number: int, ranks: Mapping[int, str]) -> None:
        """Learn for which ranks a request waits before they can agree, and why."""

    def hear(self, number: int, replies: Mapping[int, Reply]) -> None:
        """Learn where the ranks are, and what became of a request there, by rank."""

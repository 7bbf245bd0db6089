"""What each rank does with what the leader says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from dynprof.coordination.messages import (
    Cancellation,
    Message,
    Opening,
    Proposal,
    Withdrawal,
)

if TYPE_CHECKING:
    from dynprof.coordination.messages import Reply


class Participant(Protocol):
    """A rank, as the agreement sees it; its methods may wait, but for no rank else."""

    def consider(self, proposal: Proposal) -> Reply:
        """Say whether it takes part and can, once it is free for a window."""

    def where(self) -> Reply:
        """Say at which step it is."""

    def open_at(self, opening: Opening) -> Reply:
        """Open at that step, or say that it is too late."""

    def withdraw(self, withdrawal: Withdrawal) -> Reply:
        """Forget what was proposed."""

    def cancel(self, cancellation: Cancellation) -> Reply:
        """Disarm what waits, close what is open."""

    def left_alone(self, why: str) -> None:
        """Forget what was proposed: nobody will say what becomes of it."""


def answer(participant: Participant, message: Message) -> Reply:
    """Have a rank do what it is told, and return what it says to it."""
    if isinstance(message, Proposal):
        return participant.consider(message)
    if isinstance(message, Opening):
        return participant.open_at(message)
    if isinstance(message, Withdrawal):
        return participant.withdraw(message)
    if isinstance(message, Cancellation):
        return participant.cancel(message)
    return participant.where()

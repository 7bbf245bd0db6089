"""What an operator asks of the ranks together, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynprof.config import RankSet
    from dynprof.coordination.messages import GivenUp


LEADER = 0
"""The rank that leads."""
NO_DYNPROF, SILENT = "it does not run dynprof", "it did not answer in time"
PARTED = "dynprof has ended on it"
"""Why a rank takes no part of which nothing else is known."""


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


class Told(NamedTuple):
    """What the ranks were told of a request.

    Attributes:
        step: At which it opens.
        ranks: Who was to open it.
    """

    step: int = -1
    ranks: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Agreement:
    """What came of a proposal.

    Attributes:
        number: Of the request.
        step: At which all open; None where nobody does.
        ranks: Who takes part.
        left_out: Who was asked for and does not, and why.
        reasons: Why nobody opens; empty where they do.
        took_s: From the request until all had been told.
        renumbered: By how many each rank's numbers of steps were changed to the leader's.
        remarks: What else is to be said.
        outcome: What became of it where nobody opens.
    """

    number: int
    step: int | None
    ranks: tuple[int, ...] = ()
    left_out: Mapping[int, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    took_s: float = 0.0
    renumbered: Mapping[int, int] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    outcome: GivenUp = "refused"


class NoWindowError(Exception):
    """There will be none.

    Args:
        reasons: Why.
        outcome: What became of the request so.

    Attributes:
        outcome: The same.
    """

    def __init__(self, *reasons: str, outcome: GivenUp = "refused") -> None:
        super().__init__(*reasons)
        self.outcome = outcome

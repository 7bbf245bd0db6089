"""What the leader of the job has proposed last, as this rank knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dynprof.requests.request import Asked


class Proposed(NamedTuple):
    """The newest proposal.

    Attributes:
        leaders: Its number, counted by the leader.
        own: Its number here.
        asked: What it asks for; None where that cannot be had.
        saved: What was saved, and when: another leader counts from 1 again.
    """

    leaders: int
    own: int
    asked: Asked | None
    saved: tuple[str, float] = "", 0.0

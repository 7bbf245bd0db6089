"""The step that all ranks can still reach: pure, no clock, no store."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

FASTER = 0.5
"""Steps may take so much of the time that they have just taken."""
LONG_S = 5.0
"""Of steps that take longer, the one that runs tells how much time there is in it still."""


class Place(NamedTuple):
    """Where a rank was, a moment ago.

    Attributes:
        rank: Its number.
        step: The number of the step that ran.
        moved: By how many steps it had gone on since it was asked before.
        apart_s: How long before that was.
        step_s: How long its steps took of late; None where it does not know.
        still_s: For how long this one had been running.
    """

    rank: int
    step: int
    moved: int
    apart_s: float
    step_s: float | None
    still_s: float

    def renumbered(self, by: int) -> Place:
        """Return it with another number of its step."""
        return self._replace(step=self.step + by)


def start_step(
    places: Iterable[Place], lead_s: float, asked: int | None = None, multiple: int = 1
) -> int:
    """Return the first step that no rank begins within the lead.

    Args:
        places: Of each rank that takes part.
        lead_s: Until all of them know of it.
        asked: The step that the config asks for; None for the first that can be had.
        multiple: What is to divide that one.

    Raises:
        ValueError: The one that is asked for has begun already; the text says for whom.
    """
    found = 0
    for place in places:
        if asked is not None and asked <= place.step:
            raise ValueError(f"rank {place.rank} is at step {place.step}")
        found = max(found, place.step + _steps_ahead(place, lead_s))
    return -(-found // multiple) * multiple if asked is None else asked


def _steps_ahead(place: Place, lead_s: float) -> int:
    """Return how many steps from now one begins that comes after the lead.

    What steps took in the last half minute tells little of the next ones: there may have been an
    evaluation in it. What the rank has done since it was asked before tells more. The step that
    runs may end at any moment.
    """
    seen_s = place.apart_s / (place.moved + 1)
    fast_s = seen_s * FASTER if place.moved else seen_s
    ahead = 1 + math.ceil(lead_s / fast_s)
    usual_s = (place.step_s or 0.0) * FASTER
    is_long = usual_s >= LONG_S * FASTER and not place.moved
    return 1 if is_long and place.still_s + lead_s <= usual_s else ahead

"""By how much ranks that march together count their steps differently; pure.

The collectives of a process group are the same on all ranks, and torch counts them. Two ranks that
have begun as many stand at the same place of the training, whatever number each has for its step.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dynprof.coordination.messages import Mark
    from dynprof.coordination.start_step import Place

FAR = 5
"""Ranks that march together are not so many steps apart, for all that messages take."""


def ahead(marks: Mapping[int, Sequence[Mark]], leader: int) -> dict[int, int]:
    """Return by how many steps a rank's numbers are ahead of the leader's, where that is sure.

    It is where each step takes as many collectives, on both, and all marks say the same.

    Args:
        marks: Of each rank, at different steps, the oldest first.
        leader: Whose numbers count.
    """
    a_step = _collectives_a_step(marks.get(leader, ()))
    found = {}
    for rank, of_rank in marks.items():
        if not a_step or _collectives_a_step(of_rank) != a_step:
            continue
        apart = {
            (mine.step - its.step, *divmod(mine.collectives - its.collectives, a_step))
            for mine in of_rank
            for its in marks[leader]
        }
        differences = {counted - marched for counted, marched, rest in apart if not rest}
        if len(differences) == 1 and not any(rest for *_, rest in apart):
            found[rank] = differences.pop()
    return found


def _collectives_a_step(marks: Sequence[Mark]) -> int:
    """Return how many collectives a step takes; 0 where that is not known, or varies.

    On average over some steps it may be as many though it varies: where gradients are accumulated,
    one of several steps has all of them. So each mark's own step has to have had as many.
    """
    found = {
        divmod(later.collectives - earlier.collectives, later.step - earlier.step)
        for earlier, later in itertools.pairwise(marks)
        if later.step > earlier.step
    }
    quotient, rest = found.pop() if len(found) == 1 else (0, 0)
    always = all(mark.of_step == quotient for mark in marks)
    return quotient if always and not rest else 0


def renumbered(by_rank: Mapping[int, int]) -> Iterator[str]:
    """Say of each rank by how much its numbers were changed to the leader's."""
    for rank, by in sorted(by_rank.items()):
        yield f"rank {rank} counted its steps otherwise; they are numbered as here now, {by:+,}"


def far_apart(places: list[Place], sure: Mapping[int, int]) -> Iterator[str]:
    """Say which ranks are elsewhere by their numbers, where nothing tells whether they march so."""
    steps = [place.step for place in places]
    for place in places:
        by = place.step - steps[0]
        if place.rank not in sure and abs(by) > FAR + 2 * place.moved:
            text = f"rank {place.rank} is at step {place.step:,} where rank {places[0].rank} is at"
            yield f"{text} {steps[0]:,}: each opens at that number of its own"

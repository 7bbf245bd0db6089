"""By how much ranks that march together count their steps differently.

The collectives of a process group are the same on all ranks, and torch counts them. Two ranks that
have begun as many stand at the same place of the training, whatever number each has for its step.
With NCCL that is exact. Gloo counts also what ranks send to each other, on these ranks only, and
whenever each of them does: what its counts tell is believed only where the steps at which the ranks
are seen allow it, and do not allow that the numbers are the same.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dynprof.coordination.messages import Mark, Reply
    from dynprof.coordination.start_step import Place

FAR = 5
"""Ranks that march together are not so many steps apart, for all that messages take."""
MARCH = 2
"""At any one moment they are not more steps apart: each step waits for the others."""
MARKS, INEXACT_MARKS = 2, 4
"""So many have to say the same."""
KEPT = 16
"""The newest marks and answers that are kept where marks are not exact: the longer, the surer."""


class StepNumbers:
    """What the leader hears of how ranks count.

    Args:
        leader: Whose numbers count.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._marks: dict[int, tuple[Mark, ...]] = {}
        self._seen: deque[dict[int, int]] = deque(maxlen=KEPT)  # the steps of a question, by rank

    def hear(self, replies: Mapping[int, Reply]) -> None:
        """Take the marks of ranks; where one counts anew, those from then on."""
        for rank, one in replies.items():
            before, mark = self._marks.get(rank, ()), one.mark
            if mark is None or mark in before:
                continue
            if before and mark.step <= before[-1].step:
                before = ()
            self._marks[rank] = (*before, mark)[-(MARKS if mark.is_exact else KEPT) :]

    def see(self, replies: Mapping[int, Reply]) -> None:
        """Take the steps at which ranks are that were asked for that alone, the leader first."""
        steps = {
            rank: one.step for rank, one in replies.items() if one.mark and not one.mark.is_exact
        }
        if self._leader in steps:
            self._seen.append(steps)

    def forget(self) -> None:
        """Know nothing of any rank: the numbers change."""
        self._marks.clear()
        self._seen.clear()

    def knows(self, rank: int) -> bool:
        """Return whether there are marks enough of a rank; if the oldest are odd, some more."""
        marks = self._marks.get(rank, ())
        exact = all(mark.is_exact for mark in marks)
        return _enough(marks) and bool(exact or _line(marks) or len(marks) >= 2 * INEXACT_MARKS)

    def ahead(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return by how many steps a rank's numbers are ahead: for sure, and perhaps."""
        sure: dict[int, int] = {}
        perhaps: dict[int, int] = {}
        for rank, by in ahead(self._marks, self._leader).items():
            least, most = self._between(rank)
            if self._marks[rank][-1].is_exact:
                sure[rank] = by
            elif least <= by <= most:
                may_be_the_same = least <= 0 <= most
                (perhaps if by and may_be_the_same else sure)[rank] = by
        return sure, perhaps

    def _between(self, rank: int) -> tuple[float, float]:
        """Return by how much it is ahead at least and at most, by the steps it was seen at.

        It answers after the leader has said where it is itself, and before that is asked again.
        """
        found = (-math.inf, math.inf)
        for seen, later in itertools.zip_longest(self._seen, [*self._seen][1:]):
            if rank in seen:
                most = seen[rank] - seen[self._leader] + MARCH
                least = seen[rank] - later[self._leader] - MARCH if later else -math.inf
                found = max(found[0], least), min(found[1], most)
        return found


def ahead(marks: Mapping[int, Sequence[Mark]], leader: int) -> dict[int, int]:
    """Return by how many steps a rank's numbers are ahead of the leader's, as their marks say.

    They do where each step takes as many collectives, on both, and all say the same; pure.

    Args:
        marks: Of each rank, at different steps, the oldest first.
        leader: Whose numbers count.
    """
    leaders = _line(marks.get(leader, ()))
    found = {}
    for rank, of_rank in marks.items():
        line = _line(of_rank)
        if leaders and line and line[0] == leaders[0]:
            by, rest = divmod(leaders[1] - line[1], line[0])
            if not rest:
                found[rank] = by
    return found


def _enough(marks: Sequence[Mark]) -> bool:
    exact = all(mark.is_exact for mark in marks)
    return len(marks) >= (MARKS if exact else INEXACT_MARKS)


def _line(marks: Sequence[Mark]) -> tuple[int, int] | None:
    """Return how many collectives a step takes, and how many there were at step 0.

    The oldest may be odd, less than half of them: in the first steps of DDP there are more, and a
    script may set its number then.
    """
    lines = (_line_of_all(marks[odd:]) for odd in range((len(marks) + 1) // 2))
    return next(filter(None, lines), None)


def _line_of_all(marks: Sequence[Mark]) -> tuple[int, int] | None:
    """Return the same where all marks agree on it.

    None where that is not known, or varies. On average over some steps a step may take as many
    though it varies: where gradients are accumulated, one of several steps has all of them. So each
    mark's own step has to have had as many.
    """
    of_steps = {mark.of_step for mark in marks}
    a_step = of_steps.pop() if len(of_steps) == 1 and _enough(marks) else None
    if not a_step:
        return None
    at_0 = {mark.collectives - a_step * mark.step for mark in marks}
    return (a_step, at_0.pop()) if len(at_0) == 1 else None


def renumbered(by_rank: Mapping[int, int]) -> Iterator[str]:
    """Say of each rank by how much its numbers were changed to the leader's."""
    for rank, by in sorted(by_rank.items()):
        yield f"rank {rank} counted its steps otherwise; they are numbered as here now, {by:+,}"


def perhaps_otherwise(by_rank: Mapping[int, int]) -> Iterator[str]:
    """Say of each rank by how much its numbers differ, if its marks are right."""
    for rank, by in sorted(by_rank.items()):
        text = f"rank {rank} may count its steps otherwise, {-by:+,} to number them as here; or it"
        yield f"{text} has sent to others and rank 0 has not, which gloo counts: nothing is changed"


def far_apart(places: list[Place], sure: Mapping[int, int]) -> Iterator[str]:
    """Say which ranks are elsewhere by their numbers, where nothing tells whether they march so."""
    steps = [place.step for place in places]
    for place in places:
        by = place.step - steps[0]
        if place.rank not in sure and abs(by) > FAR + 2 * place.moved:
            text = f"rank {place.rank} is at step {place.step:,} where rank {places[0].rank} is at"
            yield f"{text} {steps[0]:,}: each opens at that number of its own"

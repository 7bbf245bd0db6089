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
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dynprof.coordination.messages import Mark, Reply
    from dynprof.coordination.start_step import Place

FAR = 5
"""Ranks that march together are not so many steps apart, for all that messages take."""
MARCH = 2
"""At any one moment they are not more steps apart: each step waits for the others."""
EXACT_WITNESSES, WITNESSES = 4, 6
"""So many, the newest, have to say the same: half as many marks of each rank, and one more."""
KEPT = 16
"""The newest marks of a rank, and answers, that are kept."""
Witness = tuple[int, int, int]
"""A place of the training to which both ranks have a number: how many collectives each had begun,
the leader's number of the next step, and by how much the other's is ahead."""


class Agreeing(NamedTuple):
    """What the newest witnesses say that say the same.

    Attributes:
        by: By how much the other is ahead.
        since: The leader's step of the oldest of them.
        collectives: How many each had begun at the newest.
    """

    by: int
    since: int
    collectives: int


class StepNumbers:
    """What the leader hears of how ranks count.

    Args:
        leader: Whose numbers count.
    """

    def __init__(self, leader: int) -> None:
        self._leader = leader
        self._marks: dict[int, tuple[Mark, ...]] = {}
        self._seen: deque[dict[int, int]] = deque(maxlen=KEPT)  # the steps of a question, by rank
        self._old = 0  # so many collectives had begun before it was asked anew
        self._agreeing: dict[int, Agreeing | None] = {}  # what was worked out from what was heard

    def hear(self, replies: Mapping[int, Reply]) -> None:
        """Take the marks of ranks; where one counts from a lower number, those from then on."""
        self._agreeing.clear()
        for rank, one in replies.items():
            before, mark = self._marks.get(rank, ()), one.mark
            if mark is None or mark in before[-1:]:
                continue
            if before and mark.step <= before[-1].step:
                before = ()
                if rank == self._leader:
                    self._seen.clear()
            self._marks[rank] = (*before, mark)[-KEPT:]

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
        self._agreeing.clear()

    def ask_anew(self) -> None:
        """Hold what was heard so far for old: a script may have changed its number since."""
        marks = self._marks.get(self._leader, ())
        self._old = marks[-1].collectives if marks else 0

    def knows(self, rank: int, *, anew: bool = False) -> bool:
        """Return whether it is known how a rank counts; if asked so, by what is not old."""
        found = self._newest(rank)
        return found is not None and not (anew and found.collectives <= self._old)

    def ahead(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return by how many steps a rank's numbers are ahead: for sure, and perhaps."""
        sure: dict[int, int] = {}
        perhaps: dict[int, int] = {}
        for rank, marks in self._marks.items():
            if not (found := self._newest(rank)):
                continue
            by = found.by
            least, most = self._between(rank, found.since)
            if marks[-1].is_exact:
                sure[rank] = by
            elif least <= by <= most:
                may_be_the_same = least <= 0 <= most
                (perhaps if by and may_be_the_same else sure)[rank] = by
        return sure, perhaps

    def _newest(self, rank: int) -> Agreeing | None:
        if rank not in self._agreeing:
            leaders, others = self._marks.get(self._leader, ()), self._marks.get(rank, ())
            self._agreeing[rank] = agreeing(leaders, others)
        return self._agreeing[rank]

    def _between(self, rank: int, since: int) -> tuple[float, float]:
        """Return by how much it is ahead at least and at most, by the steps it was seen at.

        It answers after the leader has said where it is itself, and before that is asked again.
        Only since that step of the leader's: before, it had other numbers perhaps.
        """
        found = (-math.inf, math.inf)
        for seen, later in itertools.zip_longest(self._seen, [*self._seen][1:]):
            if rank in seen and seen[self._leader] >= since:
                most = seen[rank] - seen[self._leader] + MARCH
                least = seen[rank] - later[self._leader] - MARCH if later else -math.inf
                found = max(found[0], least), min(found[1], most)
        return found


def agreeing(leaders: Sequence[Mark], others: Sequence[Mark]) -> Agreeing | None:
    """Return what the newest witnesses say that say the same, if they are enough; pure.

    The others before them may have said one other thing: a script has changed its number since. If
    it was more, the counts are no measure.

    Args:
        leaders: The marks of the leader, the oldest first.
        others: Those of another rank, which has begun as many collectives.
    """
    is_exact = all(mark.is_exact for mark in (*leaders, *others))
    if is_exact:
        few = -EXACT_WITNESSES - 1  # which do, as a rule; of a thousand ranks that counts
        if found := _alike(witnesses(leaders[few:], others[few:]), EXACT_WITNESSES):
            return found
    return _alike(witnesses(leaders, others), EXACT_WITNESSES if is_exact else WITNESSES)


def _alike(found: Iterable[Witness], enough: int) -> Agreeing | None:
    runs = [list(run) for _, run in itertools.groupby(sorted(found), itemgetter(2))]
    if not 1 <= len(runs) <= 2 or len(runs[-1]) < enough:
        return None
    (_, since, by), (collectives, *_) = runs[-1][0], runs[-1][-1]
    return Agreeing(by, since, collectives)


def witnesses(leaders: Sequence[Mark], others: Sequence[Mark]) -> Iterator[Witness]:
    """Yield where marks of one rank lie on a stretch of the other."""
    stretches = _stretches(leaders)
    for mark in others:
        if (step := _step_at(mark, stretches)) is not None:
            yield mark.collectives, step, mark.step - step
    stretches = _stretches(others)
    for mark in leaders:
        if (step := _step_at(mark, stretches)) is not None:
            yield mark.collectives, mark.step, step - mark.step


def _stretches(marks: Sequence[Mark]) -> list[tuple[Mark, Mark]]:
    """Return from which mark to the next each step has taken as many collectives.

    Not where there was more between two of them, as an evaluation, or where the script has changed
    its number. On average over some steps a step may take as many though it varies: where gradients
    are accumulated, one of several steps has all of them. So each mark's own step has to have had
    as many.
    """
    return [
        (one, next_) for one, next_ in itertools.pairwise(marks)
        if one.of_step and one.of_step == next_.of_step
        and next_.collectives - one.collectives == one.of_step * (next_.step - one.step)
    ]  # fmt: skip


def _step_at(mark: Mark, stretches: Sequence[tuple[Mark, Mark]]) -> int | None:
    """Return the number that another rank, of those stretches, had for the step of a mark."""
    for first, last in stretches:
        if first.collectives <= mark.collectives <= last.collectives:
            if mark.of_step == first.of_step:
                steps, rest = divmod(mark.collectives - first.collectives, mark.of_step or 1)
                return None if rest else first.step + steps
            return None
    return None


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
            text += f" {steps[0]:,}: each opens at that number of its own"
            yield f"{text}, another iteration if they march together"

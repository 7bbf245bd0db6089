"""Step numbers of processes whose first steps were not counted."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from dynprof.steps.step_numbers import FEW, StepNumbers

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rank:
    """A process that is attached after some collectives."""

    def __init__(self, counts: Sequence[int]) -> None:
        self.step, self.count, self.is_free = 0, 0, True
        self.numbers = StepNumbers(lambda: self.count, lambda: self.is_free, self._renumber)
        self.run(counts)

    def _renumber(self, step: int) -> None:
        self.step = step
        self.numbers.reset()

    def run(self, counts: Sequence[int]) -> None:
        """Begin a step at each of these counts of collectives."""
        for self.count in counts:
            self.step += 1
            self.numbers.begin_step(self.step)


@given(
    st.lists(st.integers(0, 3), min_size=30, max_size=60),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 5),
)
def test_the_number_is_that_of_rank_0_or_unknown(
    each: list[int], first: int, second: int, behind: int
) -> None:
    """Steps have any number of collectives; ranks are attached at any two of them."""
    counts = list(itertools.accumulate(each))
    leader, other = Rank(counts[first:-1]), Rank(counts[second : -1 - behind])
    if other.numbers.follow(leader.numbers.newest()):
        other.run(counts[-1 - behind :])
        leader.run(counts[-1:])
        assert other.step == leader.step
    else:
        shared = {*counts[1 + max(first, second) : -1 - behind]}
        assert len(shared - {counts[max(first, second)]}) < 2


def test_ranks_that_do_not_begin_the_same_collectives_are_not_compared() -> None:
    """One common count, or other counts between two common ones, may be chance."""
    for theirs in ([10, 20, 30, 40], [15, 25, 35, 45], [10, 20, 20, 20], [10, 20, 25, 30, 40]):
        other = Rank([0, 20, 35, 40])
        assert not other.numbers.follow(Rank(theirs).numbers.newest())
    assert not Rank([10, 20, 30]).numbers.follow(())


def test_a_process_whose_steps_have_no_collectives_may_keep_its_numbers() -> None:
    """This holds after its first steps; otherwise it takes over rank 0's known numbers."""
    taken: list[int] = []
    counts = itertools.chain([10] * (FEW + 1), itertools.count(20, 10))
    numbers = StepNumbers(lambda: next(counts), lambda: True, taken.append, may_be_unknown=True)
    assert not numbers.follow(())  # its function is not found yet
    for step in range(FEW):
        numbers.begin_step(step)
    assert not numbers.follow(())
    numbers.begin_step(FEW)
    assert numbers.follow(())
    for step in (FEW + 1, FEW + 2):
        numbers.begin_step(step)
    assert not numbers.follow(())
    assert numbers.follow(((5, 20), (6, 30)))
    numbers.begin_step(FEW + 3)
    assert taken == [7]


def test_an_open_window_keeps_its_numbers() -> None:
    """The rank's number changes only after the window has closed."""
    leader, other = Rank(range(0, 20, 2)), Rank(range(10, 20, 2))
    other.is_free = False
    assert other.numbers.follow(leader.numbers.newest())
    other.run([20])
    assert (other.step, other.numbers.is_behind) == (6, True)
    other.is_free = True
    other.run([22])
    assert (other.step, other.numbers.is_behind) == (12, False)

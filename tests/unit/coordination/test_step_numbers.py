"""By how much ranks count their steps differently, told from the collectives of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.coordination.messages import Mark, Reply
from dynprof.coordination.step_numbers import KEPT, StepNumbers, ahead, perhaps_otherwise

if TYPE_CHECKING:
    import random


def exact(step: int, collectives: int, of_step: int | None = None) -> Mark:
    """Return a mark of NCCL's count."""
    return Mark(step, collectives, of_step, is_exact=True)


AT = st.lists(st.integers(0, 200), min_size=2, max_size=4, unique=True).map(sorted)


@given(
    a_step=st.integers(1, 50),
    before=st.integers(0, 1000),
    begun=st.lists(st.tuples(st.integers(-500, 5000), AT), min_size=2, max_size=5),
)
def test_ranks_that_march_together_are_told_apart(
    a_step: int, before: int, begun: list[tuple[int, list[int]]]
) -> None:
    """Whenever each of them was asked: the oracle is how they were numbered."""
    marks = {
        rank: [exact(first + at, before + at * a_step, a_step) for at in places]
        for rank, (first, places) in enumerate(begun)
    }
    leaders = begun[0][0]
    assert ahead(marks, 0) == {rank: first - leaders for rank, (first, _) in enumerate(begun)}


@given(st.lists(st.integers(1, 9), min_size=6, max_size=6), st.integers(1, 5), st.integers(0, 100))
def test_nothing_is_said_of_steps_that_differ(collectives: list[int], at: int, first: int) -> None:
    """Where steps take different numbers of collectives, a difference is right or not given."""
    sums = [sum(collectives[:place]) for place in range(7)]
    marks = {
        0: [exact(0, sums[0], collectives[0]), exact(at, sums[at], collectives[at - 1])],
        1: [exact(first + 1, sums[1], collectives[0]), exact(first + 6, sums[6], collectives[5])],
    }
    if len(set(collectives)) == 1:
        assert ahead(marks, 0)[1] == first
    else:
        a_step = [(sums[at] - sums[0]) / at, (sums[6] - sums[1]) / 5]
        assert 1 not in ahead(marks, 0) or a_step[0] == a_step[1]


def test_what_is_not_known_is_not_guessed() -> None:
    """One mark alone, no collective in a step, one more on one rank."""
    leader = [exact(10, 20, 2), exact(11, 22, 2)]
    assert ahead({0: leader, 1: [exact(5, 20, 2)]}, 0) == {0: 0}
    assert ahead({0: leader, 1: [exact(5, 20), exact(6, 22)]}, 0) == {0: 0}
    assert ahead({0: leader, 1: [exact(5, 20, 2), exact(6, 23, 3)]}, 0) == {0: 0}
    assert ahead({0: leader, 1: [exact(5, 21, 2), exact(6, 23, 2)]}, 0) == {0: 0}
    assert ahead({0: [exact(10, 20, 0), exact(11, 20, 0)], 1: leader}, 0) == {}
    assert ahead({1: leader}, 0) == {}


@given(
    every=st.integers(2, 8),
    times=st.integers(1, 3),
    places=st.lists(AT, min_size=2, max_size=2),
)
def test_ranks_that_accumulate_gradients_are_not_told_apart(
    every: int, times: int, places: list[list[int]]
) -> None:
    """Where one of several steps has all collectives, where one stands among them is not known."""
    begun = [every * times * (step // every) for step in range(201)]
    marks = {
        rank: [exact(at, begun[at], begun[at] - begun[at - 1] if at else None) for at in mine]
        for rank, mine in enumerate(places)
    }
    assert not any(ahead(marks, 0).values())


class March:
    """Ranks that march together over gloo, in plain lines: what each has begun, step by step.

    Attributes:
        first: The number that each rank gives to the step that is the leader's 0.
    """

    def __init__(self, dice: random.Random, *, even: bool) -> None:
        self._dice, self._a_step = dice, dice.randint(1, 3)
        self.first = [0, *dice.choices([0, 1, -1, 2, -7, 40, -300], k=dice.randint(1, 3))]
        self.begun = [[0] for _ in self.first]
        if not even:  # as where one sends to all others what it has read
            self.first = [0] * len(self.first)
            self.begun = [[dice.choice([0, 0, 1, 6, 60])] for _ in self.first]
        every, more = dice.choice([1, 7, 150]), dice.randint(0, 2)
        for step in range(1100):
            for rank, begun in enumerate(self.begun):
                uneven = step % every == rank % 2  # one sends, another receives a step later
                sent = more if even else int(uneven)
                begun.append(begun[-1] + self._a_step + sent)

    def mark(self, rank: int, step: int) -> Mark:
        """Return the mark of a rank as the leader's step begins."""
        begun = self.begun[rank]
        return Mark(self.first[rank] + step, begun[step], begun[step] - begun[step - 1])

    def told(self, *, questions: int) -> tuple[dict[int, int], dict[int, int]]:
        """Ask that often, at any moments; return what is told by the answers."""
        numbers, at = StepNumbers(0), self._dice.randint(1, 50)
        for _ in range(questions):
            again = at + self._dice.choice([0, 1, 3, 30])
            replies = {}
            for rank, first in enumerate(self.first):
                apart = self._dice.randint(-1, 1) if rank else 0
                here = max(1, self._dice.randint(at, again) + apart) if rank else at
                mark = self.mark(rank, max(1, here - self._dice.randint(0, 2)))
                replies[rank] = Reply(rank, step=first + here, mark=mark)
            numbers.hear(replies)
            numbers.see(replies)
            at = again
        return numbers.ahead()


@given(st.randoms(use_true_random=False), st.integers(1, 2 * KEPT))
def test_what_gloo_counts_too_renumbers_nobody(dice: random.Random, questions: int) -> None:
    """Ranks that number alike stay so, whatever some have sent to others, and whenever."""
    sure, _ = March(dice, even=False).told(questions=questions)
    assert not any(sure.values())


@given(st.randoms(use_true_random=False), st.integers(1, 2 * KEPT))
def test_what_is_told_of_gloo_is_right(dice: random.Random, questions: int) -> None:
    """Of ranks that number otherwise; the oracle is how they were numbered."""
    march = March(dice, even=True)
    sure, perhaps = march.told(questions=questions)
    for rank, by in {**sure, **perhaps}.items():
        assert by == march.first[rank]


@pytest.mark.parametrize(("first", "told"), [(0, "sure"), (1, "perhaps"), (40, "sure")])
def test_a_rank_that_is_seen_elsewhere_is_renumbered(first: int, told: str) -> None:
    """By one step it might be ahead at any moment; messages of one step might have counted too."""
    numbers = StepNumbers(0)
    for step in range(100, 110):
        places = {0: 0, 1: first}
        replies = {
            rank: Reply(rank, step=step + by, mark=Mark(step + by, step, 1))
            for rank, by in places.items()
        }
        numbers.hear(replies)
        numbers.see(replies)
    sure, perhaps = numbers.ahead()
    assert {"sure": sure, "perhaps": perhaps}[told][1] == first
    assert sure.keys() | perhaps.keys() == {0, 1}
    said = "rank 1 may count its steps otherwise, -1 to number them as here; or it has sent"
    assert [line.startswith(said) for line in perhaps_otherwise(perhaps)] == [True] * bool(perhaps)


def test_the_first_steps_may_be_odd() -> None:
    """As those of DDP are, which has more collectives there; once others are more than they."""

    def of_rank(first: int, marks: int) -> list[Mark]:
        later = [Mark(first + 10 * n, 7 + 20 * n, 2, is_exact=False) for n in range(1, marks)]
        return [Mark(first, 3, 5, is_exact=False), *later]

    assert ahead({0: of_rank(0, 5), 1: of_rank(500, 5)}, 0) == {0: 0, 1: 500}
    assert ahead({0: of_rank(0, 4), 1: of_rank(500, 4)}, 0) == {}


def test_exact_marks_are_believed_at_once() -> None:
    """With NCCL two are enough, and a difference of one step is one."""
    numbers = StepNumbers(0)
    for step in (100, 101):
        replies = {rank: Reply(rank, step=0, mark=exact(step + rank, step, 1)) for rank in (0, 1)}
        numbers.hear(replies)
        numbers.see(replies)
    assert numbers.ahead() == ({0: 0, 1: 1}, {})

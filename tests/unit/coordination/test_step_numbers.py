"""By how much ranks count their steps differently, told from the collectives of their group."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dynprof.coordination.messages import Mark
from dynprof.coordination.step_numbers import ahead

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
        rank: [Mark(first + at, before + at * a_step, a_step) for at in places]
        for rank, (first, places) in enumerate(begun)
    }
    leaders = begun[0][0]
    assert ahead(marks, 0) == {rank: first - leaders for rank, (first, _) in enumerate(begun)}


@given(st.lists(st.integers(1, 9), min_size=6, max_size=6), st.integers(1, 5), st.integers(0, 100))
def test_nothing_is_said_of_steps_that_differ(collectives: list[int], at: int, first: int) -> None:
    """Where steps take different numbers of collectives, a difference is right or not given."""
    sums = [sum(collectives[:place]) for place in range(7)]
    marks = {
        0: [Mark(0, sums[0], collectives[0]), Mark(at, sums[at], collectives[at - 1])],
        1: [Mark(first + 1, sums[1], collectives[0]), Mark(first + 6, sums[6], collectives[5])],
    }
    if len(set(collectives)) == 1:
        assert ahead(marks, 0)[1] == first
    else:
        a_step = [(sums[at] - sums[0]) / at, (sums[6] - sums[1]) / 5]
        assert 1 not in ahead(marks, 0) or a_step[0] == a_step[1]


def test_what_is_not_known_is_not_guessed() -> None:
    """One mark alone, no collective in a step, one more on one rank."""
    leader = [Mark(10, 20, 2), Mark(11, 22, 2)]
    assert ahead({0: leader, 1: [Mark(5, 20, 2)]}, 0) == {0: 0}
    assert ahead({0: leader, 1: [Mark(5, 20), Mark(6, 22)]}, 0) == {0: 0}
    assert ahead({0: leader, 1: [Mark(5, 20, 2), Mark(6, 23, 3)]}, 0) == {0: 0}
    assert ahead({0: leader, 1: [Mark(5, 21, 2), Mark(6, 23, 2)]}, 0) == {0: 0}
    assert ahead({0: [Mark(10, 20, 0), Mark(11, 20, 0)], 1: leader}, 0) == {}
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
        rank: [Mark(at, begun[at], begun[at] - begun[at - 1] if at else None) for at in mine]
        for rank, mine in enumerate(places)
    }
    assert not any(ahead(marks, 0).values())

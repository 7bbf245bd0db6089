"""The step at which all open: reachable for all, however the steps vary, and soon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.coordination.start_step import FASTER, Place, start_step


class Walk:
    """A rank that walks on, step by step: the oracle.

    Args:
        step_s: How long its steps take.
        phase: How much of one is over as it is asked first, from 0 to 1.
        apart_s: When it is asked again.
    """

    def __init__(self, step_s: float, phase: float, apart_s: float) -> None:
        self.ends_s, self.step, self.step_s = step_s * (1 - phase), 0, step_s
        while self.ends_s <= apart_s:
            self.step += 1
            self.ends_s += step_s
        self.apart_s = apart_s

    def place(self, rank: int) -> Place:
        """Return what it says the second time."""
        still_s = self.apart_s - (self.ends_s - self.step_s)
        return Place(rank, self.step, self.step, self.apart_s, self.step_s, still_s)

    def begins_s(self, step: int, faster: float) -> float:
        """Return how long after that a step begins, where it now takes steps that much faster."""
        pace_s = self.step_s * (faster if self.step else 1.0)
        return self.ends_s - self.apart_s + (step - self.step - 1) * pace_s


WALKS = st.tuples(st.floats(0.001, 200.0), st.floats(0, 0.999))


@given(
    st.lists(WALKS, min_size=1, max_size=20),
    st.floats(0.01, 2.0),
    st.floats(0.1, 1.0),
    st.floats(FASTER, 3.0),
)
def test_no_rank_begins_it_within_the_lead(
    walks: list[tuple[float, float]], apart_s: float, of_that: float, faster: float
) -> None:
    """Also where its steps take half of what they took from then on."""
    lead_s = apart_s * of_that
    ranks = [Walk(step_s, phase, apart_s) for step_s, phase in walks]
    agreed = start_step([walk.place(rank) for rank, walk in enumerate(ranks)], lead_s)
    for walk in ranks:
        assert agreed > walk.step
        assert walk.begins_s(agreed, faster) >= lead_s - 1e-9


def first_not_begun(walk: Walk, lead_s: float) -> int:
    """Return the first step that a rank does not begin within the lead, as fast as it goes."""
    step = walk.step + 1
    while walk.begins_s(step, 1.0) < lead_s:
        step += 1
    return step


def most_ahead_of_it(walk: Walk, lead_s: float) -> float:
    """Return by how many steps more than needed may be waited for.

    They may take half as long, and how long they take is known by a few of them only. Of one that
    lasts longer than it was looked at, nothing is known but that.
    """
    looks = lead_s / walk.apart_s
    return lead_s / walk.step_s + 4 * looks + 2 if walk.step else 2 + looks


@given(
    st.lists(
        st.tuples(st.sampled_from([0.002, 60.0]) | st.floats(0.002, 60.0), st.floats(0, 0.999)),
        min_size=1,
        max_size=8,
    ),
    st.floats(0.1, 0.5),
    st.floats(0.5, 4.0),
)
def test_the_lead_scales_with_the_steps(
    walks: list[tuple[float, float]], apart_s: float, looks: float
) -> None:
    """From 2 ms to a minute: no rank has begun it, and it is not much later than it has to be."""
    lead_s = apart_s * looks
    ranks = [Walk(step_s, phase, apart_s) for step_s, phase in walks]
    agreed = start_step([walk.place(rank) for rank, walk in enumerate(ranks)], lead_s)
    needed = max(first_not_begun(walk, lead_s) for walk in ranks)
    latest = max(first_not_begun(walk, lead_s) + most_ahead_of_it(walk, lead_s) for walk in ranks)
    assert needed <= agreed <= latest


def place(rank: int, step: int, step_s: float, still_s: float = 0.0, moved: int = 0) -> Place:
    """Return where a rank is that was asked 0.1 s before."""
    return Place(rank, step, moved, 0.1, step_s, still_s)


def test_long_steps_are_not_waited_for_in_vain() -> None:
    """Of a minute each, that began a few seconds ago: the next one will do."""
    assert start_step([place(0, 7, 60.0, 5.0), place(1, 7, 60.0, 6.0)], 0.1) == 8
    assert start_step([place(0, 7, 60.0, 55.0)], 0.1) == 9


def test_short_steps_are_let_pass() -> None:
    """Of 2 ms each, where all know after 0.1 s: twice as many as usual may pass."""
    assert start_step([place(0, 1000, 0.002, moved=50)], 0.1) == 1103


def test_what_steps_took_before_does_not_count() -> None:
    """After an evaluation the mean of the last half minute says a second; they take 2 ms."""
    assert start_step([place(0, 1000, 1.0, moved=50)], 0.1) == 1103


def test_a_rank_that_pauses_may_go_on_at_any_moment() -> None:
    """For how long it has stood says nothing of when it will end its step."""
    assert start_step([place(0, 50, 0.1, 300.0)], 0.1) == 52


def test_the_rank_that_is_furthest_decides() -> None:
    """All others reach what it can reach."""
    assert start_step([place(0, 3, 1.0), place(1, 5, 1.0), place(2, 4, 1.0)], 0.1) == 7


def test_a_step_that_was_asked_for() -> None:
    """It is taken where nobody has begun it, and refused with the name of one that has."""
    there = [place(0, 3, 1.0), place(4, 5, 1.0)]
    assert start_step(there, 0.1, 100) == 100
    assert start_step(there, 9.9, 6) == 6
    with pytest.raises(ValueError, match="rank 4 is at step 5"):
        start_step(there, 0.1, 5)

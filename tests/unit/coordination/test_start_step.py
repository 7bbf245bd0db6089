"""The step at which all open: reachable for all, however the steps vary, and soon."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.coordination.messages import Reply
from dynprof.coordination.start_step import FASTER, UNKNOWN_STEPS, start_step

PLACES = st.tuples(
    st.integers(0, 10_000), st.floats(0.001, 100.0), st.floats(0, 500.0), st.floats(FASTER, 3.0)
)
"""Of a rank: its step, its usual time, for how long this one runs, and how much the next vary."""


def reply(rank: int, step: int, step_s: float | None, still_s: float = 0.0) -> Reply:
    """Return what a rank says of where it is."""
    return Reply(rank, "host", takes_part=True, step=step, step_s=step_s, still_s=still_s)


@given(st.lists(PLACES, min_size=1, max_size=20), st.floats(0.001, 10.0))
def test_no_rank_begins_it_within_the_lead(
    places: list[tuple[int, float, float, float]], lead_s: float
) -> None:
    """Walked step by step: also where each takes the least of what is allowed for."""
    replies = [
        reply(rank, step, step_s, still_s) for rank, (step, step_s, still_s, _) in enumerate(places)
    ]
    agreed = start_step(replies, lead_s)
    for step, step_s, still_s, pace in places:
        if agreed - step > 100_000:
            continue
        at_s = max(0.0, step_s * pace - still_s)  # the end of the step that runs, at the earliest
        for _ in range(agreed - step - 1):
            at_s += step_s * pace
        assert at_s >= lead_s * (1 - 1e-9)
        assert agreed > step


def test_long_steps_are_not_waited_for_in_vain() -> None:
    """Of a minute each, that began a few seconds ago: the next one will do."""
    assert start_step([reply(0, 7, 60.0, 5.0), reply(1, 7, 60.0, 6.0)], 0.2) == 8


def test_short_steps_are_let_pass() -> None:
    """Of 2 ms each, where all know after 0.1 s: twice as many as usual may pass."""
    assert start_step([reply(0, 1000, 0.002)], 0.1) == 1100


def test_a_rank_that_pauses_may_go_on_at_any_moment() -> None:
    """For how long it has stood says nothing of when it will end its step."""
    assert start_step([reply(0, 50, 0.1, 300.0)], 0.1) == 53


def test_a_rank_in_its_first_step() -> None:
    """Nobody knows how long its steps are."""
    assert start_step([reply(0, 0, None, 99.0)], 0.1) == UNKNOWN_STEPS


def test_the_rank_that_is_furthest_decides() -> None:
    """All others reach what it can reach."""
    assert start_step([reply(0, 3, 1.0), reply(1, 5, 1.0)], 0.1) == 6


def test_a_step_that_was_asked_for() -> None:
    """It is taken where all can reach it, and refused with the name of one that cannot."""
    there = [reply(0, 3, 1.0), reply(4, 5, 1.0)]
    assert start_step(there, 0.1, 100) == 100
    with pytest.raises(ValueError, match="rank 4 is at step 5"):
        start_step(there, 0.1, 5)

"""Of optimizers that step in a cycle, the one that ends it is found."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.steps.iteration_ends import LEAST_FIRES, MOST_FIRES, Ending, IterationEnds


def found(cycle: str, *, times: int = 100, begin: int = 0, pause_after: str = "") -> str | None:
    """Return who is found to end the iterations of a cycle, watched from some place in it on."""
    ends, now_s = IterationEnds[str](), 0.0
    for key in (cycle * times)[begin:]:
        answer = ends.fired(key, now_s)
        if answer is not None:
            return answer.key
        now_s += 10.0 if key == pause_after else 1.0
    return None


@pytest.mark.parametrize(
    ("cycle", "last"),
    [("a", "a"), ("ab", "b"), ("ddddg", "g"), ("dddddg", "g"), ("abc", "c"), ("aabb", "b")],
)
def test_the_rarest_ends_an_iteration_else_the_last(cycle: str, last: str) -> None:
    """As in a GAN whose critic steps more often, and where each has its turn."""
    assert found(cycle) == last


@given(st.integers(0, 5))
def test_a_watch_may_begin_in_the_midst_of_an_iteration(begin: int) -> None:
    """The rarest is the same; of equals it is that after which data are loaded."""
    assert found("dddddg", begin=begin) == "g"
    assert found("abc", begin=begin % 3, pause_after="b") == "b"


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=20), st.integers(0, 19))
def test_each_cycle_has_an_end(cycle: list[str], begin: int) -> None:
    """Whatever its form: one of those that step least often in it, or none had been expected."""
    text = "".join(cycle)
    answer = found(text, begin=begin % len(text))
    counts = {key: text.count(key) for key in text}
    assert answer is not None
    whole = 2 * len(text) <= LEAST_FIRES  # shorter cycles may hide in a long one's beginning
    if whole and len(set(text)) > 1:
        assert counts[answer] == min(counts.values())


def test_without_a_cycle_the_most_frequent_gives_the_steps() -> None:
    """In a word without squares (Thue, 1906) nothing is ever seen twice in a row."""
    parity = [number.bit_count() % 2 for number in range(4 * MOST_FIRES)]
    zeros = [place for place, one in enumerate(parity) if not one]
    word = [b - a - 1 for a, b in itertools.pairwise(zeros)][:MOST_FIRES]
    ends = IterationEnds[int]()
    *before, last = [ends.fired(key, float(number)) for number, key in enumerate(word)]
    assert before == [None] * (MOST_FIRES - 1)
    assert last is not None
    assert (last.key, last.others) == (Counter(word).most_common(1)[0][0], frozenset())


def test_one_alone_is_known_after_some_steps() -> None:
    """Not at once: a second one may step a moment later."""
    ends = IterationEnds[str]()
    answers = [ends.fired("a", float(number)) for number in range(LEAST_FIRES)]
    assert answers == [None] * (LEAST_FIRES - 1) + [Ending("a", others=frozenset({0}), since=0)]

"""By how much ranks count their steps differently, told from the collectives of their group."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynprof.coordination.messages import Mark, Reply
from dynprof.coordination.step_numbers import KEPT, StepNumbers, agreeing, perhaps_otherwise


def exact(step: int, collectives: int, of_step: int | None = None) -> Mark:
    """Return a mark of NCCL's count."""
    return Mark(step, collectives, of_step, is_exact=True)


def by(leaders: list[Mark], others: list[Mark]) -> int | None:
    """Return by how much the others are ahead, if that is told."""
    found = agreeing(leaders, others)
    return found.by if found else None


class March:
    """Ranks that march together, in plain lines: what each has begun, step by step.

    Args:
        dice: Chooses.
        numbers: What each of them may call the step that is the leader's 0; it chooses.
        sends: Whether some send to others, which gloo counts on these alone.
        jumps: Whether a script changes its number at some step, once.

    Attributes:
        number: Of each rank, how it calls each step.
        begun: Of each rank, how many collectives it has begun before each step.
    """

    def __init__(
        self, dice: random.Random, numbers: list[int], *, sends: bool = False, jumps: bool = False
    ) -> None:
        self._dice, self._is_exact = dice, not sends and dice.random() < 0.5
        a_step, evaluates, more = (
            dice.randint(1, 3),
            dice.choice([11, 40, 10**9]),
            dice.randint(1, 9),
        )
        every = dice.choice([1, 7, 150])
        self.number, self.begun, self._marked = [], [], [1] * 4
        for rank in range(dice.randint(2, 4)):
            first = dice.choice(numbers) if rank else 0
            jump_at = dice.randint(100, 1000) if jumps else 10**9
            jump = dice.choice([-20, -3, 3, 4, 100])
            self.number.append([first + step + jump * (step >= jump_at) for step in range(1200)])
            begun = [dice.choice([0, 1, 6, 60]) if sends else 0]
            for step in range(1200):
                of_step = a_step + more * (step < 2) + more * (step % evaluates == 0)
                sent = step % every == rank % 2 if sends else 0  # another receives a step later
                begun.append(begun[-1] + of_step + sent)
            self.begun.append(begun)

    def asked(self, numbers: StepNumbers, at: int, apart: int = 0) -> int:
        """Ask all ranks at a step of the leader's; return at which they are asked again."""
        again = at + (apart or self._dice.choice([1, 3, 30]))
        replies = {}
        for rank, number in enumerate(self.number):
            early = self._dice.randint(-1, 1)
            here = max(2, self._dice.randint(at, again) + early) if rank else at
            self._marked[rank] = max(self._marked[rank], here - self._dice.randint(0, 2))
            replies[rank] = Reply(rank, step=number[here], mark=self._mark(rank))
        numbers.hear(replies)
        numbers.see(replies)
        return again

    def _mark(self, rank: int) -> Mark:
        begun, step = self.begun[rank], self._marked[rank]
        of_step = begun[step] - begun[step - 1]
        return Mark(self.number[rank][step], begun[step], of_step, is_exact=self._is_exact)


OTHERWISE = [0, 1, -1, 2, -7, 17, 40, -300, 1000]
RANDOM = st.builds(random.Random, st.integers(0, 2**32))


@given(RANDOM, st.integers(1, 2 * KEPT))
def test_what_is_told_is_right(dice: random.Random, questions: int) -> None:
    """Of ranks that number otherwise, also beside evaluations; the oracle is how they number."""
    march, numbers, at = March(dice, OTHERWISE), StepNumbers(0), dice.randint(2, 50)
    for _ in range(questions):
        at = march.asked(numbers, at)
    sure, perhaps = numbers.ahead()
    for rank, ahead in {**sure, **perhaps}.items():
        assert ahead == march.number[rank][0]


@given(RANDOM)
def test_it_is_told_of_all_after_some_questions(dice: random.Random) -> None:
    """Whatever evaluations lie between them, and however they number."""
    march, numbers, at = March(dice, OTHERWISE), StepNumbers(0), 45
    for _ in range(20):
        at = march.asked(numbers, at, apart=2)
    sure, perhaps = numbers.ahead()
    assert sure.keys() | perhaps.keys() == set(range(len(march.number)))


@given(RANDOM, st.integers(1, 2 * KEPT))
def test_what_gloo_counts_too_renumbers_nobody(dice: random.Random, questions: int) -> None:
    """Ranks that number alike stay so, whatever some have sent to others, and whenever."""
    march, numbers, at = March(dice, [0], sends=True), StepNumbers(0), dice.randint(2, 50)
    for _ in range(questions):
        at = march.asked(numbers, at)
    sure, _ = numbers.ahead()
    assert not any(sure.values())


@given(RANDOM)
def test_a_number_that_a_script_has_changed(dice: random.Random) -> None:
    """Is known anew once enough is heard of the new one; what is said until then was right once."""
    march, numbers, at = March(dice, OTHERWISE, jumps=True), StepNumbers(0), 45
    while at < 1150:
        numbers.ask_anew()
        began = at
        for _ in range(KEPT):
            at = march.asked(numbers, at, apart=2)
        sure, perhaps = numbers.ahead()
        for rank, ahead in {**sure, **perhaps}.items():
            spans = zip(march.number[rank][began:at], march.number[0][began:at], strict=True)
            right = {other - leader for other, leader in spans}
            assert ahead in right
            assert len(right) > 1 or numbers.knows(rank, anew=True)


def test_steps_that_count_for_nothing() -> None:
    """A rank that calls ``step()`` more often than others is ahead by that, and soon."""
    leader = [exact(step, step, 1) for step in range(100, 130, 2)]
    other = [exact(step + 3 * (step > 110), step, 1) for step in range(100, 130, 2)]
    assert by(leader[:6], other[:6]) == 0
    assert by(leader[:7], other[:7]) is None
    assert by(leader[:8], other[:8]) == 3


def test_what_is_not_known_is_not_guessed() -> None:
    """Too few marks, no collective in a step, marks that do not meet, other collectives."""
    leader = [exact(10 + n, 20 + 2 * n, 2) for n in range(4)]
    assert by(leader, leader) == 0
    assert by(leader, [exact(5, 22, 2)]) is None
    assert by(leader, [exact(5 + n, 20 + 2 * n) for n in range(4)]) is None
    assert by(leader, [exact(5 + n, 40 + 2 * n, 2) for n in range(4)]) is None
    assert by(leader, [exact(5 + n, 21 + 2 * n, 2) for n in range(4)]) is None
    assert by(leader, [exact(5 + n, 20 + 3 * n, 3) for n in range(4)]) is None
    assert by([exact(n, 20, 0) for n in range(4)], [exact(n, 20, 0) for n in range(4)]) is None
    assert by([], leader) is None


@given(
    every=st.integers(2, 8),
    times=st.integers(1, 3),
    places=st.lists(
        st.lists(st.integers(0, 200), min_size=2, max_size=KEPT, unique=True).map(sorted),
        min_size=2, max_size=2,
    ),
)  # fmt: skip
def test_ranks_that_accumulate_gradients_are_not_told_apart(
    every: int, times: int, places: list[list[int]]
) -> None:
    """Where one of several steps has all collectives, where one stands among them is not known."""
    begun = [every * times * (step // every) for step in range(201)]
    marks = [
        [exact(at, begun[at], begun[at] - begun[at - 1] if at else None) for at in mine]
        for mine in places
    ]
    assert not by(*marks)


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


def test_exact_marks_are_believed_at_once() -> None:
    """With NCCL, whose steps a rank is seen at do not matter, a difference of one step is one."""
    numbers = StepNumbers(0)
    for step in (100, 101, 102):
        replies = {rank: Reply(rank, step=0, mark=exact(step + rank, step, 1)) for rank in (0, 1)}
        numbers.hear(replies)
        numbers.see(replies)
    assert numbers.ahead() == ({0: 0, 1: 1}, {})
    assert numbers.knows(1, anew=True)
    numbers.ask_anew()
    assert numbers.knows(1)
    assert not numbers.knows(1, anew=True)

"""The fault benchmark: its faults have a ground truth, and answers are compared with it."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.faults.jobs import FAULTS
from benchmarks.faults.quiet import changes_of_pace, stuck_steps
from benchmarks.faults.scoring import Message, Score, score
from tests.pace_series import quiet

pytestmark = pytest.mark.slow  # it loads torch
(LINE,) = FAULTS["sleeping_callback"].lines()
(EVERY,) = FAULTS["every_100th"].lines()
RIGHT = f"step 100 took 200 ms, 50 ms is usual; 150 ms more in sleeping_callback (jobs.py:{LINE})"
WRONG = "step 117 took 90 ms, 50 ms is usual; the training thread waited 40 ms for a CPU"


def scored(name: str, *said: tuple[float, int, str], last_step: int = 0) -> Score:
    """Return the score of messages, each with its time, its rank and its words."""
    messages = [Message(at_s, "log", frozenset({rank}), text) for at_s, rank, text in said]
    return score(FAULTS[name], messages, last_step)


def test_each_fault_has_a_line_or_a_cause() -> None:
    """A fault on one rank of several names the rank, too."""
    assert len(FAULTS) == 30
    assert all(one.lines() or one.cause for one in FAULTS.values())
    assert all(one.world_size > one.rank for one in FAULTS.values() if one.rank is not None)


@pytest.mark.parametrize(
    ("said", "is_named"),
    [
        pytest.param([(1, 0, RIGHT)], True, id="right"),
        pytest.param([(1, 0, WRONG), (2, 0, RIGHT), (3, 0, RIGHT)], True, id="mostly right"),
        pytest.param([(1, 0, RIGHT), (2, 0, WRONG), (3, 0, WRONG)], False, id="mostly wrong"),
        pytest.param([(1, 0, WRONG), (2, 0, RIGHT)], False, id="first wrong"),
        pytest.param([(-1, 0, RIGHT), (61, 0, RIGHT)], False, id="before and too late"),
        pytest.param([(0, 0, WRONG.replace("117", "97")), (1, 0, RIGHT)], True, id="old step"),
        pytest.param([(1, 0, "the pace changed: 50 ms until 01:00:50")], False, id="no cause"),
        pytest.param([], False, id="nothing"),
    ],
)
def test_the_most_frequent_answer_within_a_minute_counts(
    said: list[tuple[float, int, str]], *, is_named: bool
) -> None:
    """Of equally frequent answers the first."""
    found = scored("sleeping_callback", *said)
    assert found.is_named == is_named
    assert len(found.false_alarms) == sum(at_s <= 0 for at_s, *_ in said)


def test_the_line_of_another_rank_is_no_answer() -> None:
    """The faulty rank and no other."""
    fault = FAULTS["longer_batch"]
    said = f"step 100 took 200 ms, 50 ms is usual; 150 ms more in f (jobs.py:{min(fault.lines())})"
    assert scored("longer_batch", (1, 1, said)).is_named
    assert not scored("longer_batch", (1, 0, said)).is_named


def test_an_evaluation_that_is_called_stuck_is_not_named() -> None:
    """A long step that is no fault: its line has to be named, and no alarm given."""
    said = f"step 100 took 40,000 ms, 50 ms is usual; more in f (jobs.py:{LINE})"
    line = f"jobs.py:{min(FAULTS['slow_evaluation'].lines())}"
    said = said.replace(f"jobs.py:{LINE}", line)
    assert scored("slow_evaluation", (41, 0, said)).is_named
    assert not scored(
        "slow_evaluation", (31, 0, f"stuck: step 100, {line}"), (41, 0, said)
    ).is_named


def test_slow_steps_that_return_are_counted() -> None:
    """Of the steps 100, 200, 300 and 400, two have a record with the line."""
    said = [(one / 20, 0, RIGHT.replace("100", str(one))) for one in (100, 300)]
    line = f"jobs.py:{min(FAULTS['every_100th'].lines())}"
    records = [(at_s, rank, text.replace(f"jobs.py:{LINE}", line)) for at_s, rank, text in said]
    assert scored("every_100th", *records, last_step=450).occurrences == (2, 4)


def test_slow_steps_that_a_line_counts_are_explained() -> None:
    """Only if it counts all of them: of steps 300 to 800, 600 and 700 are not like the record."""
    like = f"step {{}} took 200 ms, 50 ms is usual; 150 ms more in every_100th (jobs.py:{EVERY}); "
    said = [
        (0.1, 0, like.format(100).rstrip("; ")),
        (11, 0, like.format(300) + "2 slow steps like step 100 (a.html)"),
        (22, 0, like.format(500) + "4 slow steps like step 100 (a.html)"),
        (33, 0, like.format(800) + "5 slow steps like step 100 (a.html)"),
    ]
    found = scored("every_100th", *said, last_step=850)
    assert found.occurrences == (6, 8)


def test_a_quiet_series_has_no_false_alarm() -> None:
    """One of the thirty days of the benchmark."""
    day = quiet(1)
    assert (changes_of_pace(day), stuck_steps(day)) == (0, 0)

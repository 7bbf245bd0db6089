"""The results of the last edits."""

from __future__ import annotations

import pytest

from dynprof.journal.edit_outcomes import MAX_IN_STATUS, MAX_KEPT, EditOutcomes, in_words


def test_a_superseded_request_does_not_wait() -> None:
    """A step that finds at the same moment that it must wait does not undo that."""
    outcomes = EditOutcomes()
    outcomes.enter(1, "", 0.0)
    assert outcomes.wait(1, "waits, the disk is full")
    assert not outcomes.wait(1, "waits, the disk is full")
    outcomes.note(1, "superseded", "superseded by request 2")
    assert not outcomes.wait(1, "waits, the last capture is being saved")
    assert not outcomes.wait(2, "waits, nobody knows it")
    (answer,) = outcomes.answers
    assert (answer.outcome, answer.text) == ("superseded", "superseded by request 2")


def test_open_requests_are_remembered_longest() -> None:
    """Newer edits replace ended ones, not open ones."""
    outcomes = EditOutcomes()
    outcomes.enter(1, "", 0.0)
    for number in range(2, MAX_KEPT + 40):
        outcomes.enter(number, "", 0.0)
        outcomes.note(number, "refused")
    assert [answer.number for answer in outcomes.answers] == [
        1,
        *range(MAX_KEPT + 21, MAX_KEPT + 40),
    ]
    assert len(outcomes.answers) == MAX_IN_STATUS
    assert outcomes.answer(1)
    assert outcomes.answer(40) is None
    assert outcomes.answer(MAX_KEPT)


def test_the_status_has_fewer_edits_than_are_remembered() -> None:
    """Commands ask ranks for a window's result after many more edits."""
    outcomes = EditOutcomes()
    for number in range(1, 101):
        outcomes.enter(number, "", 0.0)
        outcomes.note(number, "saved")
    assert [answer.number for answer in outcomes.answers] == [*range(81, 101)]
    answer = outcomes.answer(1)
    assert answer
    assert answer.outcome == "saved"


@pytest.mark.parametrize(
    ("outcome", "text", "words"),
    [
        ("failed", "no trace; a full disk", "failed: no trace; a full disk"),
        ("superseded", "superseded by request 2", "superseded by request 2"),
        ("waiting", "", "waiting"),
    ],
)
def test_an_outcome_is_named_once(outcome: str, text: str, words: str) -> None:
    """The outcome precedes the reason, unless the reason begins with it or is empty."""
    assert in_words(outcome, text) == words

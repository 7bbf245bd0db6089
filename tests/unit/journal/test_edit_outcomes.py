"""What became of the last edits."""

from __future__ import annotations

from dynprof.journal.edit_outcomes import MOST, EditOutcomes


def test_open_requests_are_remembered_longest() -> None:
    """Newer edits push out what has ended, not what is still on its way."""
    outcomes = EditOutcomes()
    outcomes.enter(1, "", 0.0)
    for number in range(2, 40):
        outcomes.enter(number, "", 0.0)
        outcomes.note(number, "refused")
    assert len(outcomes.answers) == MOST
    assert outcomes.answers[0].number == 1

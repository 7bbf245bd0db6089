"""The error boundary between dynprof and the training job."""

from __future__ import annotations

from dynprof.runtime.error_boundary import ErrorBoundary


class Notes:
    """Keeps the errors that a boundary notes."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def set_status(self, *, last_error: str) -> None:
        """Ignore it: the next call has it."""

    def error(self, text: str) -> None:
        """Keep it."""
        self.errors.append(text.partition("\n")[0])


def test_a_failed_cleanup_does_not_raise() -> None:
    """If an action and its cleanup fail, both are noted and neither raises."""
    notes = Notes()

    def act() -> None:
        raise LookupError("no window")

    def give_up(error: Exception) -> None:
        raise RuntimeError("no manifest") from error

    ErrorBoundary(notes).attempt_or("a step", act, give_up)
    assert notes.errors == [
        "a step failed: LookupError: no window",
        "giving up a step failed: RuntimeError: no manifest",
    ]

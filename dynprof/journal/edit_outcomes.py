"""The outcome of each edit: the status has it, so that no request is lost silently."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Outcome = Literal[
    "refused",
    "not requested",
    "cancel",
    "watch",
    "waiting",
    "open",
    "saving",
    "saved",
    "failed",
    "superseded",
    "cancelled",
    "not served",
]
"""``waiting``, ``open`` and ``saving`` are in progress; the others are final."""

IN_PROGRESS: tuple[Outcome, ...] = ("waiting", "open", "saving")
MAX_KEPT, MAX_IN_STATUS = 200, 20
"""Number of edits in memory, and number of edits in the status."""


def in_words(outcome: str, text: str) -> str:
    """Return an outcome and its reason, without repeating the outcome."""
    named = text.startswith(outcome)
    return text if named else f"{outcome}: {text}" if text else outcome


@dataclass(frozen=True)
class Answer:
    """One edit and its outcome.

    Attributes:
        number: Number of the edit in this process, from 1; a rank that follows a leader uses the
            leader's numbers.
        sha256: Digest of the config's bytes; empty if they could not be read.
        edited_at: Time of the save, in seconds since the epoch.
        outcome: The current outcome.
        text: The reason, in sentences.
        capture: Path of its manifest, relative to the config's directory.
        cut: Why the capture does not have all requested steps; empty if it does.
        expected: Expected cost of saving; empty until the first step shows it.
    """

    number: int
    sha256: str
    edited_at: float
    outcome: Outcome
    text: str = ""
    capture: str | None = None
    cut: str = ""
    expected: str = ""


class EditOutcomes:
    """The newest edits, oldest first; any thread can update them.

    Attributes:
        on_change: Called after an update, on the thread that makes it.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = bool
        self._answers: dict[int, Answer] = {}
        self._lock = threading.RLock()  # a signal handler may call status() while this is held

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The edits for the status: the newest, and all that are in progress."""
        with self._lock:
            found = tuple(self._answers.values())
        ended = [answer.number for answer in found if answer.outcome not in IN_PROGRESS]
        old = {*ended[: max(0, len(found) - MAX_IN_STATUS)]}
        return tuple(answer for answer in found if answer.number not in old)

    @property
    def in_progress(self) -> tuple[int, ...]:
        """The numbers of the edits that are in progress."""
        with self._lock:
            return tuple(a.number for a in self._answers.values() if a.outcome in IN_PROGRESS)

    @property
    def newest(self) -> int:
        """The highest number; 0 for none."""
        with self._lock:
            return max(self._answers, default=0)

    def answer(self, number: int) -> Answer | None:
        """Return one edit; None if it is no longer kept."""
        return self._answers.get(number)

    def enter(self, number: int, sha256: str, edited_at: float) -> None:
        """Add a new edit."""
        with self._lock:
            self._answers[number] = Answer(number, sha256, edited_at, "waiting")
            while len(self._answers) > MAX_KEPT:
                all_of_them = self._answers.copy().values()  # a signal handler may add one
                ended = [a.number for a in all_of_them if a.outcome not in IN_PROGRESS]
                del self._answers[min(ended or self._answers)]
        self.on_change()

    def wait(self, number: int, text: str) -> bool:
        """Note what an edit waits for; return whether this is new.

        An edit that no longer waits is not changed: another thread may have just superseded or
        opened it.
        """
        with self._lock:
            answer = self._answers.get(number)
            if answer is None or answer.outcome != "waiting" or answer.text == text:
                return False
            self._answers[number] = dataclasses.replace(answer, outcome="waiting", text=text)
            return True

    def note(
        self,
        number: int,
        outcome: Outcome,
        text: str = "",
        capture: str | None = None,
        cut: str = "",
        expected: str = "",
    ) -> None:
        """Set the outcome of an edit; do nothing if it is no longer kept."""
        with self._lock:
            if answer := self._answers.get(number):
                self._answers[number] = dataclasses.replace(
                    answer,
                    outcome=outcome,
                    text=text,
                    capture=capture or answer.capture,
                    cut=cut,
                    expected=expected or answer.expected,
                )
        self.on_change()

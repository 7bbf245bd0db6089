"""What became of each edit: kept in the status, so that nobody's request is lost without a word."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Outcome = Literal[
    "refused",
    "not asked",
    "cancel",
    "waiting",
    "open",
    "saving",
    "saved",
    "failed",
    "superseded",
    "disarmed",
    "not served",
]
"""``waiting``, ``open`` and ``saving`` are on their way; the others are how an edit ends."""

IN_PROGRESS: tuple[Outcome, ...] = ("waiting", "open", "saving")
MAX_KEPT, MAX_IN_STATUS = 200, 20
"""How many edits are remembered, and how many the status tells of."""


def in_words(outcome: str, text: str) -> str:
    """Return what became of an edit and why, naming it once."""
    named = text.startswith(outcome)
    return text if named else f"{outcome}: {text}" if text else outcome


@dataclass(frozen=True)
class Answer:
    """One edit and what became of it.

    Attributes:
        number: Counts the edits of the process, from 1; who follows a leader takes its
            numbers.
        sha256: Digest of the config's bytes; empty where they could not be read.
        edited_at: Time of the save, seconds since the epoch.
        outcome: What became of it so far.
        text: Why, in sentences.
        capture: Its manifest, relative to the config's directory.
        cut: Why that has not all the steps that were asked for; empty where it has.
        expected: What it is expected to cost to save; empty until the first step tells it.
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
    """The newest edits, the oldest first; every thread may note what it knows.

    Attributes:
        on_change: Called after an outcome was noted, on the thread that notes it.
    """

    def __init__(self) -> None:
        self.on_change: Callable[[], object] = bool
        self._answers: dict[int, Answer] = {}
        self._lock = threading.RLock()  # a signal handler may call status() while it is held

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The edits to tell of: the newest, and what is on its way."""
        with self._lock:
            found = tuple(self._answers.values())
        ended = [answer.number for answer in found if answer.outcome not in IN_PROGRESS]
        old = {*ended[: max(0, len(found) - MAX_IN_STATUS)]}
        return tuple(answer for answer in found if answer.number not in old)

    @property
    def newest(self) -> int:
        """The highest number; 0 for none."""
        with self._lock:
            return max(self._answers, default=0)

    def answer(self, number: int) -> Answer | None:
        """Return what became of one edit; None where it is forgotten."""
        return self._answers.get(number)

    def enter(self, number: int, sha256: str, edited_at: float) -> None:
        """Note a new edit."""
        with self._lock:
            self._answers[number] = Answer(number, sha256, edited_at, "waiting")
            while len(self._answers) > MAX_KEPT:
                all_of_them = self._answers.copy().values()  # a handler may enter one meanwhile
                ended = [a.number for a in all_of_them if a.outcome not in IN_PROGRESS]
                del self._answers[min(ended or self._answers)]
        self.on_change()

    def wait(self, number: int, text: str) -> bool:
        """Note what an edit still waits for; return whether that is news.

        One that has gone on does not: another thread may have superseded or opened it a moment ago.
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
        """Note what became of an edit; nothing if it is forgotten already."""
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

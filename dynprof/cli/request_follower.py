"""Follows one request on all its ranks, from the save to the captures."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dynprof.cli.config_directory import LIVE, THERE, health, statuses
from dynprof.cli.outcome import LOST, UNSERVED, say
from dynprof.cli.whole_job import tell_of_all
from dynprof.journal.edit_outcomes import IN_PROGRESS, Answer, in_words
from dynprof.journal.journal import printable
from dynprof.journal.status import (
    HEARTBEAT_S,
    NOBODY_YET,
    JobStatus,
    Status,
    WindowStatus,
    stage_progress,
)
from dynprof.runtime.destination import placed
from dynprof.runtime.layout import rank_in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

Process = tuple[int, str, int]
"""What tells it from others: ``Status.process``."""
POLL_S = 0.1
ANSWER_S = 3 * HEARTBEAT_S
"""A live rank that has not taken notice of a save after so long does not answer."""
LED = ("waiting", "open", "saving", "saved", "failed", "not asked", "cancel")
"""What may become of a request where the rank leads that goes on elsewhere."""
GOOD = ("saved", "cancel", "not asked")
CANCELLED = (*IN_PROGRESS, "saved", "failed")
"""What may become of a window that a cancel closes."""
STAGES = {
    "waiting": ("waiting for its step", 0.05),
    "saving": ("saving", 0.85),
    "cancel": ("cancelled", 1.0),
}
STAGES_OF_CANCEL = {**STAGES, "waiting": ("closing", 0.7), "open": ("closing", 0.7)}
"""What is shown of a request, and how much of it is done."""


class Follower:
    """Watches the status files.

    Args:
        config: The config.
        sha256: Digest of what was saved.
        before: The status of the ranks before it was saved.

    Attributes:
        gave_up: Why it is followed no more though a rank has not served it; empty where all have.
        can_be_cancelled: Whether a rank waits with it, records it or has not answered.
    """

    def __init__(self, config: Path, sha256: str, before: list[Status]) -> None:
        self._directory, self._sha256 = config.parent, sha256
        self._saved_at = config.stat().st_mtime
        asked = {status.process for status in before}
        gone = [one for one in statuses(self._directory) if health(one) not in THERE]
        known = (*before, *(one for one in gone if one.process not in asked))
        self._seen = {
            status.process: max((a.number for a in status.edits), default=0) for status in known
        }
        self._ended = {
            (status.process, answer.number)
            for status in known
            for answer in status.edits
            if answer.outcome not in IN_PROGRESS
        }
        jobs = [status.job for status in known if status.job]
        self._over = {one.request for job in jobs for one in job.requests if one.pending == 0}
        self._began_s = time.monotonic()
        self._told_expected = False
        self.gave_up = ""
        self.can_be_cancelled = True

    def follow(self, asked: list[Status], timeout_s: float | None) -> int:
        """Show how it goes on in these processes until all is over; return the exit code."""
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        with bar:
            task = bar.add_task("saved", total=1)
            while True:
                newest = {status.process: status for status in statuses(self._directory)}
                found = [newest.get(status.process) for status in asked]
                said = [self._answers(status) for status in found]
                self._tell_expected(found, said)
                self.can_be_cancelled = any(map(_can_be_cancelled, found, said))
                words, share = _progress(list(zip(found, said, strict=True)))
                bar.update(task, description=printable(words), completed=share)
                patient, led = timeout_s is not None, self._led(newest)
                over = all(
                    self._is_over(*pair, led.get(pair[0].role, []) if pair[0] else [], patient)
                    for pair in zip(found, said, strict=True)
                )
                over = over and all(one.pending == 0 for windows in led.values() for one in windows)
                late = timeout_s is not None and time.monotonic() - self._began_s > timeout_s
                if over or late:
                    break
                time.sleep(POLL_S)
        self.gave_up = "" if over else "the time is up"
        codes = [
            self._tell(before, status, answer, led.get(before.role, []))
            for before, status, answers in zip(asked, found, said, strict=True)
            for answer in answers or (None,)
        ]
        answered = list(zip(asked, said, strict=True))
        for role in sorted({*led, *(one.role for one in asked)}):
            of_role = {one.rank: answers for one, answers in answered if one.role == role}
            codes += self._tell_of_all(led.get(role, []), of_role, role)
        return max(codes, default=0)

    def _tell_expected(self, found: list[Status | None], said: list[list[Answer]]) -> None:
        """Say once what it will cost, as the first rank that knows tells it."""
        if self._told_expected:
            return
        for status, answers in zip(found, said, strict=True):
            for answer in answers[:1]:
                if status and answer.expected:
                    self._told_expected = True
                    say(f"{status.named}: {printable(answer.expected)}", err=True)
                    return

    def _tell_of_all(
        self, led: list[WindowStatus], said: dict[int, list[Answer]], role: str
    ) -> Iterator[int]:
        """Say how it ended on all ranks of a role; what a cancel disarms is no loss."""
        if not led:
            _tell_of_cuts(said, role)
        a_cancel = any(one.outcome == "cancel" for answers in said.values() for one in answers)
        for window in led:
            known = _placed_as_captures(_without(window, said), self._directory)
            code = tell_of_all(self._directory, known, role)
            yield 0 if a_cancel and code != LOST else code

    def _led(self, newest: dict[Process, Status]) -> dict[str, list[WindowStatus]]:
        """Return by role what the rank that leads knows of its windows, if they go on elsewhere.

        Or that has led, where its group or its process is no more: what it had heard by then counts
        where that was all.
        """
        led: dict[str, list[WindowStatus]] = {}
        for status in newest.values():
            answer = self._answer(status) if status.job else None
            known = self._windows(status.job, answer) if status.job and answer else []
            over = all(one.pending == 0 for one in known)
            if known and answer and (health(status) in THERE or over):
                windows = [one for one in known if _goes_on(one, status.rank, answer)]
                led.setdefault(status.role, windows)
        return led

    def _windows(self, job: JobStatus, answer: Answer) -> list[WindowStatus]:
        """Return the windows of all ranks that it is about: its own, or those that it cancels."""
        if answer.outcome != "cancel":
            own = job.of(answer.number)
            return [own] if own else []
        return [
            one for one in job.requests
            if 0 < one.request < answer.number and one.request not in self._over
        ]  # fmt: skip

    def _answers(self, status: Status | None) -> list[Answer]:
        """Return what became of it in a process; of a cancel, also of the windows that it met."""
        answer = self._answer(status)
        if status is None or answer is None:
            return []
        if answer.outcome != "cancel":
            return [answer]
        earlier = [one for one in status.edits if one.number < answer.number]
        new = [one for one in earlier if (status.process, one.number) not in self._ended]
        return [answer, *(one for one in new if one.outcome in CANCELLED)]

    def _answer(self, status: Status | None) -> Answer | None:
        """Return what became of the save in a process.

        The script may ask for the same bytes again, by ``dp.start()``: that is another request.
        """
        if status is None:
            return None
        seen = self._seen.get(status.process, 0)
        newer = [answer for answer in status.edits if answer.number > seen]
        mine = [answer for answer in newer if answer.sha256 == self._sha256]
        later = [answer for answer in newer if answer.edited_at > self._saved_at]
        if later and not mine:
            text = "another save took its place before it was read"
            return replace(later[0], outcome="superseded", text=text)
        return min(mine, key=lambda one: abs(one.edited_at - self._saved_at), default=None)

    def _is_over(
        self, status: Status | None, answers: list[Answer], led: list[WindowStatus], patient: bool
    ) -> bool:
        if answers and all(answer.outcome not in IN_PROGRESS for answer in answers):
            return True
        how = health(status) if status else "dead"
        if how not in (THERE if answers else LIVE) or (how == "stuck" and not patient):
            return True
        late = time.monotonic() - self._began_s > ANSWER_S
        return not answers and (late or _is_lost(led, status))

    def _tell(
        self, before: Status, status: Status | None, answer: Answer | None, led: list[WindowStatus]
    ) -> int:
        """Say how it ended on a rank; return the exit code that this means."""
        how = health(status) if status else "dead"
        if answer and answer.outcome == "saved":
            say(placed(self._directory, str(answer.capture)))
            return 0
        if answer and answer.outcome not in IN_PROGRESS:
            say(f"{before.named}: {in_words(answer.outcome, answer.text)}", err=True)
            return 0 if answer.outcome in GOOD else UNSERVED
        if how not in THERE:
            say(f"{before.named}: the process {_ended(how)}", err=True)
            return LOST
        if not answer and _is_lost(led, status):
            return LOST  # of which the rank that leads knows more
        self.gave_up = self.gave_up or "a rank does not go on"
        state = f"still {in_words(answer.outcome, answer.text)}" if answer else "has not answered"
        say(f"{before.named}: {state}{_standing_still(status, how)}", err=True)
        return LOST


def _goes_on(known: WindowStatus, leader: int, answer: Answer) -> bool:
    """Return whether there is more to say of a request than what became of it where that leads."""
    if answer.outcome in LED:
        return True
    return not known.problems and (bool(known.pending) or leader in known.stragglers)


def _is_lost(led: list[WindowStatus], status: Status | None) -> bool:
    """Return whether the rank that leads says why another has no capture, and will have none."""
    return any(status and one.pending == 0 and status.rank in one.stragglers for one in led)


def _without(known: WindowStatus, said: dict[int, list[Answer]]) -> WindowStatus:
    """Return it without what the ranks have said themselves."""
    news = {
        rank: why
        for rank, why in known.stragglers.items()
        if not any(in_words(a.outcome, a.text).startswith(why) for a in said.get(rank, ()))
    }
    return replace(known, stragglers=news)


def _placed_as_captures(known: WindowStatus, directory: Path) -> WindowStatus:
    """Return it with its record, where that lies elsewhere, named by its whole path."""
    if Path(known.record).parts[:1] != ("..",):
        return known
    return replace(known, record=os.path.normpath(directory.resolve() / known.record))


def _tell_of_cuts(said: dict[int, list[Answer]], role: str) -> None:
    """Say whose capture has not all the steps, and why; who cancels it knows."""
    for rank, answers in said.items():
        if answers and answers[0].outcome == "saved" and answers[0].cut:
            say(f"{rank_in_words(role, rank)} was cut short: {answers[0].cut}", err=True)


def _standing_still(status: Status | None, how: str) -> str:
    """Say for how long a rank stands in its step, where that is remarkable, or that it ends."""
    if status and how == "ending":
        return f"; the process is ending: {status.ending}"
    what = {"stuck": "its step counter has stood still", "starting": "it is in its first step"}
    if status is None or how not in what:
        return ""
    text = f"; {what[how]} for {status.stuck_s(time.time()):,.0f} s"
    nobody = how == "starting" and status.steps_from.startswith(NOBODY_YET)
    return f"{text}, and its steps come from {status.steps_from}" if nobody else text


def _can_be_cancelled(status: Status | None, answers: list[Answer]) -> bool:
    if not answers:
        return bool(status and health(status) in LIVE)
    return any(one.outcome in ("waiting", "open") for one in answers)


def _ended(how: str) -> str:
    return "ended" if how == "stopped" else "is dead: its status is no longer written"


def _progress(found: list[tuple[Status | None, list[Answer]]]) -> tuple[str, float]:
    """Return what to show: how many ranks are where, the time it will take, and the share done."""
    shares, left_s = [], 0.0
    stages: dict[str, list[tuple[int, int]]] = {}
    for status, answers in found:
        if status is None:
            continue
        stage, share = _stage(status, answers)
        stages.setdefault(stage, []).append(stage_progress(status))
        shares.append(share)
        if status.progress and status.step_ms and answers and answers[0].outcome == "open":
            done, asked = status.progress
            left_s = max(left_s, (asked - done) * status.step_ms / 1e3)
    words = ", ".join(map(_words, stages.items()))
    if left_s >= 1:
        words += f", about {left_s:.0f} s left"
    return words or "nobody answers", sum(shares) / len(shares) if shares else 0.0


def _words(stage: tuple[str, list[tuple[int, int]]]) -> str:
    """Return ``2 recording 45-54/100``."""
    name, ranks = stage
    text = f"{len(ranks)} {name}"
    if name not in ("warmup", "recording"):
        return text
    done = sorted({done for done, _ in ranks})
    return f"{text} {'-'.join(map(str, {done[0]: 0, done[-1]: 0}))}/{max(ranks)[1]}"


def _stage(status: Status, answers: list[Answer]) -> tuple[str, float]:
    if not answers:
        return "asked", 0.0
    on_the_way = [one.outcome for one in answers if one.outcome in IN_PROGRESS]
    outcome = on_the_way[0] if on_the_way else answers[-1].outcome
    if answers[0].outcome == "open":
        done, asked = status.progress or (0, 1)
        return status.state, 0.1 + 0.7 * done / asked
    stages = STAGES_OF_CANCEL if answers[0].outcome == "cancel" else STAGES
    return stages.get(outcome, (outcome, 1.0))

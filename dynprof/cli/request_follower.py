"""Follows one request on all its ranks, from the save to the captures."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dynprof.cli.config_directory import health, ranks_of, statuses
from dynprof.cli.outcome import NOT_SERVED, RANK_LOST, say
from dynprof.journal.edit_outcomes import IN_PROGRESS, Answer, in_words
from dynprof.journal.journal import printable
from dynprof.journal.status import (
    HEARTBEAT_S,
    LIVE,
    NO_SOURCE,
    RUNNING,
    JobStatus,
    Status,
    WindowStatus,
    stage_progress,
)
from dynprof.runtime.destination import absolute_place
from dynprof.runtime.layout import rank_in_words
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

Process = tuple[int, str, int]
"""Identity of a process: ``Status.process``."""
POLL_S = 0.1
"""Seconds between two reads of the status files."""
ANSWER_S = 3 * HEARTBEAT_S
"""Time after which a live rank that has not read a save counts as not answering."""
OUTCOMES_WITH_LEADER = ("waiting", "open", "saving", "saved", "failed", "not requested", "cancel")
"""Outcomes on the leading rank with which the request may still run on other ranks."""
SUCCESSFUL = ("saved", "cancel", "watch", "not requested")
CANCELLED_OUTCOMES = (*IN_PROGRESS, "saved", "failed")
"""Outcomes of a window that a cancel closes."""
STAGES = {
    "waiting": ("waiting for its step", 0.05),
    "saving": ("saving", 0.85),
    "cancel": ("cancelled", 1.0),
}
STAGES_OF_CANCEL = {**STAGES, "waiting": ("closing", 0.7), "open": ("closing", 0.7)}
"""Name and share done of each stage of a request, by its outcome."""


class Follower:
    """Follows a request by reading the status files.

    Args:
        config: The config file.
        sha256: Digest of the saved config.
        before: The status of the ranks before the save.

    Attributes:
        stop_reason: Why following stopped before all ranks served the request; empty if all did.
        can_be_cancelled: Whether a rank has the request waiting or open, or has not answered.
    """

    def __init__(self, config: Path, sha256: str, before: list[Status]) -> None:
        self._directory, self._sha256 = config.parent, sha256
        self._saved_at = config.stat().st_mtime
        asked = {status.process for status in before}
        gone = [one for one in statuses(self._directory) if health(one) not in RUNNING]
        known = (*before, *(one for one in gone if one.process not in asked))
        self._seen = {
            status.process: max((a.number for a in status.edits), default=0) for status in known
        }
        # A cancel closes none of these.
        self._closed = {
            (status.process, answer.number)
            for status in known
            for answer in status.edits
            if answer.outcome not in ("waiting", "open")
        }
        leading = [(status, status.job) for status in known if status.job]
        self._closed_by_all = {
            one.request for _, job in leading for one in job.requests if one.pending == 0
        } | {
            answer.number for status, _ in leading for answer in status.edits
            if answer.outcome in ("saving", "saved", "failed")
        }  # fmt: skip
        self._began_s = time.monotonic()
        self._cost_reported = False
        self.stop_reason = ""
        self.can_be_cancelled = True

    def follow(self, asked: list[Status], timeout_s: float | None) -> int:
        """Show the progress in these processes until all have ended it; return the exit code."""
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
                self._report_expected_cost(found, said)
                self.can_be_cancelled = any(map(_can_be_cancelled, found, said))
                words, share = _progress(list(zip(found, said, strict=True)))
                bar.update(task, description=printable(words), completed=share)
                patient, led = timeout_s is not None, self._windows_by_role(newest)
                over = all(
                    self._is_over(*pair, led.get(pair[0].role, []) if pair[0] else [], patient)
                    for pair in zip(found, said, strict=True)
                )
                over = over and all(one.pending == 0 for windows in led.values() for one in windows)
                late = timeout_s is not None and time.monotonic() - self._began_s > timeout_s
                if over or late:
                    break
                time.sleep(POLL_S)
        self.stop_reason = "" if over else "timeout"
        codes = self._report_ranks(asked, found, said, led)
        answered = list(zip(asked, said, strict=True))
        for role in sorted({*led, *(one.role for one in asked)}):
            of_role = {one.rank: answers for one, answers in answered if one.role == role}
            codes += self._report_job(led.get(role, []), of_role, role)
        return max(codes, default=0)

    def _report_ranks(
        self,
        asked: list[Status],
        found: list[Status | None],
        said: list[list[Answer]],
        led: dict[str, list[WindowStatus]],
    ) -> list[int]:
        """Print how it ended on each rank, the same words once; return the exit codes."""
        codes, captures, problems = [], list[str](), dict[str, dict[Process, Status]]()
        for before, status, answers in zip(asked, found, said, strict=True):
            for answer in answers or (None,):
                code, capture, problem = self._end(status, answer, led.get(before.role, []))
                codes.append(code)
                captures += [capture] if capture else []
                if problem:
                    problems.setdefault(problem, {})[before.process] = before
        for problem, ranks in problems.items():
            say(f"{ranks_of(ranks.values())}: {problem}", err=True)
        for capture in captures:
            say(capture)
        return codes

    def _report_expected_cost(self, found: list[Status | None], said: list[list[Answer]]) -> None:
        """Print once what the capture will cost, from the first rank that knows."""
        if self._cost_reported:
            return
        for status, answers in zip(found, said, strict=True):
            for answer in answers[:1]:
                if status and answer.expected:
                    self._cost_reported = True
                    say(f"{status.named}: {printable(answer.expected)}", err=True)
                    return

    def _report_job(
        self, led: list[WindowStatus], said: dict[int, list[Answer]], role: str
    ) -> Iterator[int]:
        """Print how it ended on all ranks of a role; windows that it cancels do not count."""
        if not led:
            _report_cuts(said, role)
        a_cancel = any(one.outcome == "cancel" for answers in said.values() for one in answers)
        for window in led:
            known = _placed_as_captures(_without_known(window, said), self._directory)
            code = report_job(self._directory, known, role)
            yield 0 if a_cancel and code != RANK_LOST else code

    def _windows_by_role(self, newest: dict[Process, Status]) -> dict[str, list[WindowStatus]]:
        """Return by role the windows of the leading rank that may still run on other ranks.

        If the leader's group or process has ended, its last report counts only if it was complete.
        """
        led: dict[str, list[WindowStatus]] = {}
        for status in newest.values():
            answer = self._answer(status) if status.job else None
            known = self._windows(status.job, answer) if status.job and answer else []
            over = all(one.pending == 0 for one in known)
            if known and answer and (health(status) in RUNNING or over):
                windows = [one for one in known if _is_open_elsewhere(one, status.rank, answer)]
                led.setdefault(status.role, windows)
        return led

    def _windows(self, job: JobStatus, answer: Answer) -> list[WindowStatus]:
        """Return the windows of an answer on all ranks: its own, or those that it cancels."""
        if answer.outcome != "cancel":
            own = job.of(answer.number)
            return [own] if own else []
        return [
            one for one in job.requests
            if 0 < one.request < answer.number and one.request not in self._closed_by_all
        ]  # fmt: skip

    def _answers(self, status: Status | None) -> list[Answer]:
        """Return a process's answer to the save; for a cancel, also those of windows it closes."""
        answer = self._answer(status)
        if status is None or answer is None:
            return []
        if answer.outcome != "cancel":
            return [answer]
        earlier = [one for one in status.edits if one.number < answer.number]
        new = [one for one in earlier if (status.process, one.number) not in self._closed]
        return [answer, *(one for one in new if one.outcome in CANCELLED_OUTCOMES)]

    def _answer(self, status: Status | None) -> Answer | None:
        """Return a process's answer to the save.

        The script may request the same bytes again with ``dp.start()``: that is another request.
        """
        if status is None:
            return None
        seen = self._seen.get(status.process, 0)
        newer = [answer for answer in status.edits if answer.number > seen]
        own = [answer for answer in newer if answer.sha256 == self._sha256]
        later = [answer for answer in newer if answer.edited_at > self._saved_at]
        if later and not own:
            text = "a newer save replaced it before it was read"
            return replace(later[0], outcome="superseded", text=text)
        return min(own, key=lambda one: abs(one.edited_at - self._saved_at), default=None)

    def _is_over(
        self, status: Status | None, answers: list[Answer], led: list[WindowStatus], patient: bool
    ) -> bool:
        if answers and all(answer.outcome not in IN_PROGRESS for answer in answers):
            return True
        how = health(status) if status else "dead"
        if how not in (RUNNING if answers else LIVE) or (how == "stuck" and not patient):
            return True
        late = time.monotonic() - self._began_s > ANSWER_S
        return not answers and (late or _is_lost(led, status))

    def _end(
        self, status: Status | None, answer: Answer | None, led: list[WindowStatus]
    ) -> tuple[int, str, str]:
        """Return a rank's exit code, and its capture or why it has none; both may be empty."""
        how = health(status) if status else "dead"
        if answer and answer.outcome == "saved":
            return 0, absolute_place(self._directory, str(answer.capture)), ""
        if answer and answer.outcome not in IN_PROGRESS:
            code = 0 if answer.outcome in SUCCESSFUL else NOT_SERVED
            return code, "", in_words(answer.outcome, answer.text)
        if how not in RUNNING:
            return RANK_LOST, "", f"the process {_ended(how)}"
        if not answer and _is_lost(led, status):
            return RANK_LOST, "", ""  # the leading rank reports more
        self.stop_reason = self.stop_reason or "a rank makes no progress"
        state = f"still {in_words(answer.outcome, answer.text)}" if answer else "has not answered"
        return RANK_LOST, "", f"{state}{_stuck_note(status, how, self._directory)}"


def _is_open_elsewhere(known: WindowStatus, leader: int, answer: Answer) -> bool:
    """Return whether the request may differ on other ranks from its outcome on the leader."""
    if answer.outcome in OUTCOMES_WITH_LEADER:
        return True
    return not known.problems and (bool(known.pending) or leader in known.stragglers)


def _is_lost(led: list[WindowStatus], status: Status | None) -> bool:
    """Return whether the leading rank reports that another rank will have no capture."""
    return any(status and one.pending == 0 and status.rank in one.stragglers for one in led)


def _without_known(known: WindowStatus, said: dict[int, list[Answer]]) -> WindowStatus:
    """Return a window without the stragglers whose own status says the same."""
    news = {
        rank: why
        for rank, why in known.stragglers.items()
        if not any(in_words(a.outcome, a.text).startswith(why) for a in said.get(rank, ()))
    }
    return replace(known, stragglers=news)


def _placed_as_captures(known: WindowStatus, directory: Path) -> WindowStatus:
    """Return a window with the absolute path of its record, if that is outside the directory."""
    if Path(known.record).parts[:1] != ("..",):
        return known
    return replace(known, record=os.path.normpath(directory.resolve() / known.record))


def _report_cuts(said: dict[int, list[Answer]], role: str) -> None:
    """Print which captures lack steps, and why; a cancel needs no such line."""
    for rank, answers in said.items():
        if answers and answers[0].outcome == "saved" and answers[0].cut:
            say(f"{rank_in_words(role, rank)} was cut short: {answers[0].cut}", err=True)


def _stuck_note(status: Status | None, how: str, directory: Path) -> str:
    """Return a note that a rank is stuck, in its first step, or ending; empty for none."""
    if status and how == "alive" and status.standing_s(time.time()):
        how = "stuck"  # not yet, and its request waits for the end of this step
    if status and how == "ending":
        return f"; the process is ending: {status.ending}"
    what = {"stuck": "its step counter has not moved", "starting": "it is in its first step"}
    if status is None or how not in what:
        return ""
    text = f"; {what[how]} for {status.stuck_s(time.time()):,.0f} s"
    if how == "stuck":
        return f"{text}; dynprof dump {directory} shows where it is"
    no_source = how == "starting" and status.steps_from.startswith(NO_SOURCE)
    return f"{text}, and it has {status.steps_from}" if no_source else text


def _can_be_cancelled(status: Status | None, answers: list[Answer]) -> bool:
    if not answers:
        return bool(status and health(status) in LIVE)
    return any(one.outcome in ("waiting", "open") for one in answers)


def _ended(how: str) -> str:
    words = {"stopped": "ended", "failed": "failed: an exception ended its script"}
    return words.get(how, "is dead: its status is no longer written")


def _progress(found: list[tuple[Status | None, list[Answer]]]) -> tuple[str, float]:
    """Return the text to show, with the ranks per stage and the time left, and the share done."""
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
    return words or "no rank answers", sum(shares) / len(shares) if shares else 0.0


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
        return "waiting for answer", 0.0
    on_the_way = [one.outcome for one in answers if one.outcome in IN_PROGRESS]
    outcome = on_the_way[0] if on_the_way else answers[-1].outcome
    if answers[0].outcome == "open":
        done, asked = status.progress or (0, 1)
        return status.state, 0.1 + 0.7 * done / asked
    stages = STAGES_OF_CANCEL if answers[0].outcome == "cancel" else STAGES
    return stages.get(outcome, (outcome, 1.0))


def report_job(directory: Path, known: WindowStatus, role: str = "") -> int:
    """Print how a request ended on all ranks of a role; return the exit code for that."""
    if known.problems:
        say("\n".join(known.problems), err=True)
        return NOT_SERVED
    where = f": {directory / known.record}" if known.record else ""
    noun = f"{role} rank".lstrip()
    saved = f"{known.saved:,} of {counted(known.asked, noun)} saved it"
    if not known.asked:
        saved = f"the {noun}s have not agreed on a step yet"
    say(f"{saved}{known.unsaved_in_words}{where}", err=True)
    for rank, why in known.stragglers.items():
        say(f"{rank_in_words(role, rank)}: {why}", err=True)
    for text in known.remarks:
        say(text, err=True)
    if known.asked and known.saved == known.asked:
        return 0
    ended = known.saved + sum(known.unsaved.get(one, 0) for one in ("cancelled", "superseded"))
    return NOT_SERVED if known.asked and ended == known.asked else RANK_LOST

"""Follows one request on all its ranks, from the save to the captures."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dynprof.cli.config_directory import LIVE, health, statuses
from dynprof.cli.outcome import LOST, UNSERVED, say
from dynprof.cli.whole_job import is_over, tell_of_all
from dynprof.files.destination import placed
from dynprof.journal.edit_outcomes import ON_THE_WAY, Answer
from dynprof.journal.journal import printable
from dynprof.journal.status import HEARTBEAT_S, JobStatus, Status

POLL_S = 0.1
ANSWER_S = 3 * HEARTBEAT_S
"""A live rank that has not taken notice of a save after so long does not answer."""
LED = ("waiting", "open", "saving", "saved", "failed", "not asked")
"""What may become of a request where the rank leads that goes on elsewhere."""
GOOD = ("saved", "cancel", "not asked")


class Follower:
    """Watches the status files.

    Args:
        config: The config.
        sha256: Digest of what was saved.
        before: The status of the ranks before it was saved.
    """

    def __init__(self, config: Path, sha256: str, before: list[Status]) -> None:
        self._directory, self._sha256 = config.parent, sha256
        self._saved_at = config.stat().st_mtime
        self._seen = {
            status.process: max((a.number for a in status.edits), default=0) for status in before
        }
        self._began_s = time.monotonic()

    def follow(self, asked: list[Status], timeout_s: float | None) -> int:
        """Show how it goes on in these processes until all is over; return the exit code."""
        console = Console(stderr=True)
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        with bar:
            task = bar.add_task("saved", total=1)
            while True:
                newest = {status.process: status for status in statuses(self._directory)}
                found = [newest.get(status.process) for status in asked]
                said = [self._answer(status) for status in found]
                words, share = _progress(list(zip(found, said, strict=True)))
                bar.update(task, description=printable(words), completed=share)
                patient = timeout_s is not None
                over = all(self._is_over(*pair, patient) for pair in zip(found, said, strict=True))
                over = over and self._is_over_everywhere(newest)
                late = timeout_s is not None and time.monotonic() - self._began_s > timeout_s
                if over or late:
                    break
                time.sleep(POLL_S)
        ranks = [status.rank for status in asked]
        codes = [*map(self._tell, ranks, found, said)]
        if led := self._led(newest):
            job, number = led
            codes.append(
                tell_of_all(self._directory, _placed_as_captures(job, self._directory), number)
            )
        if not led or led[0].request != led[1]:  # else it has been said of all ranks
            _tell_of_cuts(ranks, said)
        return max(codes, default=0)

    def _led(self, newest: dict[tuple[int, str, int], Status]) -> tuple[JobStatus, int] | None:
        """Return what the rank that leads knows, and its number of the request, if it has both.

        Or that has led, where its group or its process is no more: what it had heard by then counts
        where that was all.
        """
        for status in newest.values():
            answer = self._answer(status) if status.job else None
            if not (status.job and answer):
                continue
            if health(status) in LIVE or is_over(status.job, answer.number):
                return (status.job, answer.number) if answer.outcome in LED else None
        return None

    def _is_over_everywhere(self, newest: dict[tuple[int, str, int], Status]) -> bool:
        """Return whether it is over on the ranks that are not to be seen from here, too."""
        led = self._led(newest)
        tells = any(one.job and health(one) in LIVE for one in newest.values())
        return not tells or led is None or is_over(*led)

    def _answer(self, status: Status | None) -> Answer | None:
        if status is None:
            return None
        seen = self._seen.get(status.process, 0)
        newer = [answer for answer in status.edits if answer.number > seen]
        mine = [answer for answer in newer if answer.sha256 == self._sha256]
        later = [answer for answer in newer if answer.edited_at > self._saved_at]
        if later and not mine:
            text = "another save took its place before it was read"
            return replace(later[0], outcome="superseded", text=text)
        return mine[-1] if mine else None

    def _is_over(self, status: Status | None, answer: Answer | None, patient: bool) -> bool:
        if answer and answer.outcome not in ON_THE_WAY:
            return True
        how = health(status) if status else "dead"
        if how not in LIVE or (how == "stuck" and not patient):
            return True
        return answer is None and time.monotonic() - self._began_s > ANSWER_S

    def _tell(self, rank: int, status: Status | None, answer: Answer | None) -> int:
        """Say how it ended on a rank; return the exit code that this means."""
        how = health(status) if status else "dead"
        if answer and answer.outcome == "saved":
            say(placed(self._directory, str(answer.capture)))
            return 0
        if answer and answer.outcome not in ON_THE_WAY:
            say(f"rank {rank}: {_in_words(answer)}", err=True)
            return 0 if answer.outcome in GOOD else UNSERVED
        if how not in LIVE:
            say(f"rank {rank}: the process {_ended(how)}", err=True)
            return LOST
        state = f"still {_in_words(answer)}" if answer else "has not answered"
        say(f"rank {rank}: {state}{_standing_still(status, how)}", err=True)
        return LOST


def _placed_as_captures(job: JobStatus, directory: Path) -> JobStatus:
    """Return it with its record, where that lies elsewhere, named by its whole path."""
    if Path(job.record).parts[:1] != ("..",):
        return job
    return replace(job, record=os.path.normpath(directory.resolve() / job.record))


def _tell_of_cuts(ranks: list[int], said: list[Answer | None]) -> None:
    """Say whose capture has not all the steps, and why."""
    for rank, answer in zip(ranks, said, strict=True):
        if answer and answer.outcome == "saved" and answer.cut:
            say(f"rank {rank} was cut short: {answer.cut}", err=True)


def _standing_still(status: Status | None, how: str) -> str:
    """Say for how long a rank stands in its step, where that is remarkable."""
    what = {"stuck": "its step counter has stood still", "starting": "it is in its first step"}
    if status is None or how not in what:
        return ""
    return f"; {what[how]} for {status.stuck_s(time.time()):,.0f} s"


def _in_words(answer: Answer) -> str:
    """Return the outcome and why, naming it once."""
    named = answer.text.startswith(answer.outcome)
    return answer.text if named else f"{answer.outcome}: {answer.text}"


def _ended(how: str) -> str:
    return "ended" if how == "stopped" else "is dead: its status is no longer written"


def _progress(found: list[tuple[Status | None, Answer | None]]) -> tuple[str, float]:
    """Return what to show: how many ranks are where, the time it will take, and the share done."""
    shares, left_s = [], 0.0
    stages: dict[str, list[tuple[int, int]]] = {}
    for status, answer in found:
        if status is None:
            continue
        stage, share = _stage(status, answer)
        stages.setdefault(stage, []).append(status.progress or (0, 0))
        shares.append(share)
        if status.progress and status.step_ms and answer and answer.outcome == "open":
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


def _stage(status: Status, answer: Answer | None) -> tuple[str, float]:
    if answer is None:
        return "asked", 0.0
    if answer.outcome == "open":
        done, asked = status.progress or (0, 1)
        return status.state, 0.1 + 0.7 * done / asked
    shown = {"waiting": ("waiting for its step", 0.05), "saving": ("saving", 0.85)}
    return shown.get(answer.outcome, (answer.outcome, 1.0))

"""Prints what the leading rank knows of all ranks, and finds ranks that start after a save."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from dynprof.cli.config_directory import each_rank, live, ranks_of
from dynprof.cli.outcome import NOT_SERVED, RANK_LOST, say
from dynprof.journal.status import LEADS
from dynprof.runtime.layout import rank_in_words
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dynprof.journal.status import JobStatus, Status, WindowStatus

BAR_CELLS = 20
"""Width of the bar in cells."""
BLOCK, SHADE = "\N{FULL BLOCK}", "\N{LIGHT SHADE}"
POLL_S = 0.05
"""Seconds between two reads of the status files."""
FIRST_STATUS_S = 0.5
"""How long to wait for a first status, which follows 0.1 to 0.2 s after reading the config."""
READ_S = 5.0
"""How long to wait for a new process to read the save: it looks again within two seconds."""


def job_lines(leader: Status) -> list[tuple[str, str]]:
    """Return the lines about all ranks, each with its style."""
    job = leader.job
    if job is None or leader.agreement != LEADS:
        return []
    states = ", ".join(f"{count} {state}" for state, count in job.states.items())
    age = f", last report {time.time() - job.heard_at:,.0f} s ago" if job.heard_at else ""
    leads = f"{leader.named} leads {counted(job.ranks, 'rank')}"
    found = [(f"{leads}: {states or 'no report yet'}{age}", "")]
    if job.request:
        found.append((f"request {job.request}: {_window_progress(job)}", ""))
    late = job.stragglers.items()
    missing = [(f"{rank_in_words(leader.role, rank)}: {why}", "yellow") for rank, why in late]
    noticed = [(text, "yellow") for text in (*job.problems, *job.remarks)]
    return [*found, *noticed, *missing]


def remote_leader(found: Sequence[Status]) -> str:
    """Return which rank elsewhere leads the ranks of a directory; empty if none does."""
    parts = {status.agreement for status in found}
    if not parts or "" in parts or LEADS in parts:
        return ""
    ranks = ranks_of(found, each_rank)
    return (
        f"{ranks} {'follow' if len(found) > 1 else 'follows'}{min(parts).removeprefix('follows')}"
    )


def _window_progress(job: JobStatus) -> str:
    if job.pending is None:
        return "the ranks are being asked"
    if job.problems:
        return "no rank opens"
    text = f"{job.saved:,} of {counted(job.asked, 'rank')} saved{_unsaved(job)}"
    if not job.pending:  # a bar would look unfinished
        return text
    full = round(BAR_CELLS * job.saved / job.asked) if job.asked else 0
    return f"{text} {BLOCK * full}{SHADE * (BAR_CELLS - full)}"


def _unsaved(window: WindowStatus) -> str:
    """Return how it ended on ranks that did not save it, to append to a message."""
    return "".join(f", {outcome} on {count:,}" for outcome, count in window.unsaved.items())


def report_job(directory: Path, known: WindowStatus, role: str = "") -> int:
    """Print how a request ended on all ranks of a role; return the exit code for that."""
    if known.problems:
        say("\n".join(known.problems), err=True)
        return NOT_SERVED
    where = f": {directory / known.record}" if known.record else ""
    ranks = counted(known.asked, f"{role} rank".lstrip())
    saved = f"{known.saved:,} of {ranks} saved it"
    say(f"{saved}{_unsaved(known)}{where}", err=True)
    for rank, why in known.stragglers.items():
        say(f"{rank_in_words(role, rank)}: {why}", err=True)
    for text in known.remarks:
        say(text, err=True)
    if known.saved == known.asked:
        return 0
    ended = known.saved + sum(known.unsaved.get(one, 0) for one in ("cancelled", "superseded"))
    return NOT_SERVED if ended == known.asked else RANK_LOST


def with_new_ranks(directory: Path, sha256: str, before: list[Status]) -> list[Status]:
    """Return the ranks that a save asks: those before it, and newer ones that have read it.

    A process that finds the saved file when it starts does not treat it as a request.

    Args:
        directory: The directory of the config.
        sha256: Digest of the saved config.
        before: The ranks that were live before the save.
    """
    began_s = time.monotonic()
    known = {status.process for status in before}
    while True:
        new = [status for status in live(directory) if status.process not in known]
        informed = [status for status in new if any(a.sha256 == sha256 for a in status.edits)]
        patience_s = READ_S if new else 0.0 if before else FIRST_STATUS_S
        if (new and len(informed) == len(new)) or time.monotonic() - began_s >= patience_s:
            # As they were before the save: the follower reads its outcome later.
            return [*before, *(replace(status, edits=()) for status in informed)]
        time.sleep(POLL_S)

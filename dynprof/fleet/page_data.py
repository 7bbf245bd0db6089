"""What the page shows of jobs, as plain data: small, because a job may have 10,000 ranks."""

from __future__ import annotations

import contextlib
import html
import re
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from dynprof.errors import CaptureError
from dynprof.fleet.jobs import HEALTHS, UNHEALTHY
from dynprof.journal.edit_outcomes import IN_PROGRESS
from dynprof.journal.history import load_history, recent_pace
from dynprof.journal.journal import printable
from dynprof.journal.status import LEADS
from dynprof.runtime.destination import is_url, why_no_destination
from dynprof.runtime.layout import (
    ANALYSIS_DIR,
    CONFIG_NAME,
    HISTORY_SUFFIX,
    SLOW_STEPS_DIR,
    STATUS_DIR,
    rank_name,
    trace_stem,
)
from dynprof.runtime.safe_open import open_inside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.fleet.jobs import Capture, Job, Rank
    from dynprof.journal.edit_outcomes import Answer
    from dynprof.journal.history import HistoryRecord
    from dynprof.journal.status import Status

MAX_ODD, MAX_REQUESTS, MAX_TEXT = 200, 20, 500
"""Odd ranks and requests that are listed, and characters of a text from a job."""
POINTS = 360
"""Points of the drawn history: one for three pixels of a wide screen."""
SPANS_S = {"hour": 3600.0, "day": 86_400.0, "all": float("inf")}
HEAD_BYTES = 16 << 10
"""Bytes at the start of a report that have its verdict."""
VERDICT_S = 15.0
"""Seconds until a report is read again; reading one costs two opened files."""
_VERDICT = re.compile(r'<meta name="description" content="([^"]*)">')

Data = dict[str, Any]


class Verdicts:
    """Reads the verdicts of captures from the reports that are next to them."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[float, str]] = {}

    def of(self, capture: Capture) -> str:
        """Return the verdict; empty while there is no report."""
        now_s = time.monotonic()
        read_s, verdict = self._known.get(capture.folder, (float("-inf"), ""))
        if now_s - read_s > VERDICT_S:
            verdict = next(filter(None, map(_verdict, _reports(capture))), "")
            self._known[capture.folder] = now_s, verdict
        return verdict

    def keep(self, used: set[Path]) -> None:
        """Drop the verdicts of all other captures."""
        for folder in self._known.keys() - used:
            self._known.pop(folder, None)

    def note(self, capture: Capture, report: Path) -> None:
        """Keep the verdict of a report elsewhere."""
        self._known[capture.folder] = float("inf"), _verdict(report)


def _reports(capture: Capture) -> Iterator[Path]:
    place = capture.folder / ANALYSIS_DIR
    yield place / "report.html"
    trace = trace_stem(capture.folder / capture.manifest.trace) if capture.manifest.trace else ""
    if trace.strip("."):
        yield place / trace / "report.html"


def _verdict(report: Path) -> str:
    with contextlib.suppress(OSError), open_inside(report) as file:
        found = _VERDICT.search(file.read(HEAD_BYTES).decode("utf-8", "replace"))
        return html.unescape(found[1]) if found else ""
    return ""


def named(job: Job) -> str:
    """Return the name by which a browser asks for a job: text, whatever its folder is called."""
    return printable(job.name)


def in_short(job: Job, verdicts: Verdicts) -> Data:
    """Return the row of a job in the list of all."""
    pace, leader = job.pace, _speaker(job)
    newest = job.captures[0] if job.captures else None
    return {
        "name": named(job),
        "health": job.health,
        "troubles": job.troubles,
        "severity": job.severity,
        "step": job.step,
        "pace_ms": pace and [pace.least, pace.median, pace.most],
        "slowest": pace and pace.slowest.status.named,
        "recent_ms": list(leader.recent_pace.means_ms) if leader else [],
        "recent_s": leader.recent_pace.to_s - leader.recent_pace.from_s if leader else 0.0,
        "ranks": len(job.ranks),
        "counts": dict(job.counts),
        "capture": newest and of_capture(newest, verdicts),
        "window": _window(job),
        "wrote_at": max((one.status.heartbeat for one in job.ranks), default=0.0),
    }


def _speaker(job: Job) -> Status | None:
    """Return the status that speaks for a job: of its leader, else of its lowest live rank."""
    ranks = job.live or job.ranks
    leading = (one.status for one in ranks if one.status.agreement == LEADS)
    return next(leading, ranks[0].status if ranks else None)


def _window(job: Job) -> str:
    """Return what the profiler does now, if it is busy in a rank."""
    busy = Counter(one.status.state for one in job.live)
    order = ("recording", "warmup", "saving", "sending", "waiting")
    return next((state for state in order if busy[state]), "")


def of_capture(capture: Capture, verdicts: Verdicts) -> Data:
    """Return what is shown of a capture."""
    manifest, steps = capture.manifest, capture.manifest.steps
    asked, is_cut = steps.last - steps.first + 1, False
    if capture.outcome == "incomplete" and not capture.saved:
        is_cut = 0 < steps.recorded < asked
    return {
        "name": capture.folder.name,
        "folder": str(capture.folder),
        "outcome": capture.outcome,
        "rank": manifest.rank,
        "trigger": manifest.request.trigger[:MAX_TEXT],
        "reason": manifest.reason[:MAX_TEXT],
        "steps": [steps.first, steps.first + steps.recorded - 1 if is_cut else steps.last],
        "cut": f"cut short, {steps.recorded:,} of {asked:,} steps" if is_cut else "",
        "at": capture.opened_at,
        "ranks": [capture.saved, capture.ranks],
        "is_baseline": manifest.is_baseline,
        "backend": manifest.backend,
        "cost_ms": manifest.cost.extra_ms,
        "has_trace": manifest.trace is not None,
        "trace_bytes": manifest.trace_bytes,
        "verdict": verdicts.of(capture)[:MAX_TEXT],
    }


def in_full(job: Job, verdicts: Verdicts) -> Data:
    """Return all that the page of a job shows, except history and log."""
    hosts = sorted({one.status.host for one in job.ranks})
    numbers = {host: number for number, host in enumerate(hosts)}
    places = {id(rank): place for place, rank in enumerate(job.ranks)}
    odd = sorted(job.odd, key=_oddity)
    return {
        **in_short(job, verdicts),
        "directory": str(job.directory),
        "live": len(job.live),
        "memory_mb": _memory(job),
        "config_at": _changed_at(job.directory / CONFIG_NAME),
        "baselines": next((one.status.baselines for one in job.live if one.status.baselines), ""),
        "hosts": hosts,
        "grid": {
            "rank": [one.status.rank for one in job.ranks],
            "role": [one.status.role for one in job.ranks],
            "host": [numbers[one.status.host] for one in job.ranks],
            "health": [HEALTHS.index(one.health) for one in job.ranks],
            "ms": [one.status.step_ms and round(one.status.step_ms, 3) for one in job.ranks],
            "step": [one.status.step for one in job.ranks],
        },
        "odd": [_of_odd(rank, places[id(rank)], job.read_at) for rank in odd[:MAX_ODD]],
        "odd_left_out": max(0, len(odd) - MAX_ODD),
        "requests": _requests(job),
        "problems": list(dict.fromkeys(text for one in job.live for text in one.status.problems))[
            :MAX_REQUESTS
        ],
        "captures": [of_capture(one, verdicts) for one in job.captures],
        "elsewhere": elsewhere(job),
        "has_slow_step": bool(record_of_slow_step(job)),
    }


def _memory(job: Job) -> list[int]:
    """Return the most memory that a live rank has: resident, and reserved on its devices."""
    found = [one.status.memory for one in job.live]
    resident = max((one.resident_mb for one in found), default=0)
    return [resident, max((one.reserved_mb for one in found), default=0)]


def _changed_at(path: Path) -> float:
    """Return when a file was changed, in seconds since the epoch; 0 if there is none."""
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def _oddity(rank: Rank) -> tuple[int, float, str, int]:
    """Return the key by which unhealthy ranks come first, the worst before, then the slowest."""
    status = rank.status
    if rank.health in UNHEALTHY:
        return UNHEALTHY.index(rank.health), 0.0, status.role, status.rank
    return len(UNHEALTHY), -(status.step_ms or 0.0), status.role, status.rank


def _of_odd(rank: Rank, place: int, now_s: float) -> Data:
    status = rank.status
    return {
        "place": place,
        "named": status.named,
        "host": status.host,
        "pid": status.pid,
        "health": rank.health,
        "step": status.step,
        "ms": status.step_ms,
        "since_last_step_s": round(status.stuck_s(now_s), 1),
        "at": (status.stuck_at or status.failure or status.ending or status.last_error or "")[
            :MAX_TEXT
        ],
    }


def _requests(job: Job) -> list[Data]:
    """Return the newest requests, each with its outcomes on all ranks."""
    found: dict[tuple[float, str], list[tuple[Rank, Answer]]] = {}
    for rank in job.ranks:
        for answer in rank.status.edits:
            found.setdefault((answer.edited_at, answer.sha256), []).append((rank, answer))
    newest = sorted(found.items(), reverse=True)[:MAX_REQUESTS]
    return [
        {"at": at, "is_open": any(a.outcome in IN_PROGRESS for _, a in those), **_outcomes(those)}
        for (at, _), those in newest
    ]


def _outcomes(answers: list[tuple[Rank, Answer]]) -> Data:
    counts = Counter(answer.outcome for _, answer in answers)
    texts: dict[str, str] = {}
    for rank, answer in answers:
        if answer.text and answer.outcome not in texts:
            texts[answer.outcome] = f"{rank.status.named}: {answer.text}"[:MAX_TEXT]
    return {
        "number": max(answer.number for _, answer in answers),
        "outcomes": dict(counts.most_common()),
        "texts": texts,
    }


def record_of_slow_step(job: Job) -> str:
    """Return the name of the page about a job's newest slow step with one; empty for none.

    It is in the folder of all such pages, whatever the status file says.
    """
    lasts = [one.status.watch.last for one in job.live if one.status.watch]
    last = max(filter(None, lasts), key=lambda one: one.ended_at, default=None)
    name = last.record.removeprefix(f"{SLOW_STEPS_DIR}/") if last else ""
    return name if re.fullmatch(r"[\w-]+\.html", name, re.ASCII) else ""


def elsewhere(job: Job) -> list[str]:
    """Return the URLs of the folders of captures in a store, the newest first.

    Only URLs that a config may name: a status file may say anything.
    """
    answers = [answer for rank in job.ranks for answer in rank.status.edits if answer.capture]
    answers.sort(key=lambda answer: answer.edited_at, reverse=True)
    urls = (answer.capture or "" for answer in answers)
    folders = (url.rpartition("/info/")[0] for url in urls if is_url(url))
    allowed = (url for url in folders if url and not why_no_destination(url))
    return list(dict.fromkeys(allowed))[:MAX_REQUESTS]


def history(job: Job, place: int, span: str) -> Data:
    """Return the pace of a rank over a time, and when it changed.

    Args:
        job: The job.
        place: The place of the rank in the job.
        span: A key of :data:`SPANS_S`.
    """
    record = _history_record(job, job.ranks[place].status) if place < len(job.ranks) else None
    if record is None:
        return {"at_s": [], "ms": [], "changes": [], "restarts": []}
    readings = record.readings()
    from_ms = (readings[-1].at_ms if readings else 0) - SPANS_S[span] * 1e3
    pace = recent_pace([one for one in readings if one.at_ms >= from_ms], POINTS)
    width_s = (pace.to_s - pace.from_s) / max(1, len(pace.means_ms))
    at_s = [round(pace.from_s + (n + 0.5) * width_s, 1) for n in range(len(pace.means_ms))]
    changes = [
        {"at_s": one.at_s, "step": one.step, "ms": [one.before_ms, one.after_ms]}
        for one in record.changes
    ]
    restarts = [{"at_s": at_s, "step": step} for at_s, step in record.restarts]
    return {"at_s": at_s, "ms": list(pace.means_ms), "changes": changes, "restarts": restarts}


def _history_record(job: Job, status: Status) -> HistoryRecord | None:
    name = f"{rank_name(status.role, status.rank)}{HISTORY_SUFFIX}"
    with contextlib.suppress(CaptureError, FileNotFoundError):
        return load_history(job.directory / STATUS_DIR / name)
    return None

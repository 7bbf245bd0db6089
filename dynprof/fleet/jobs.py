"""The jobs below some directories: their ranks and captures, as their files have them.

A reading costs a look at the folders, and the parsing of files that have changed. A job of 10,000
ranks has as many status files, and each changes every five seconds.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dynprof.captures.baselines import opened_at, windows_in
from dynprof.captures.manifest import Manifest, load_manifest
from dynprof.captures.window_record import WindowRecord, load_window_record
from dynprof.errors import CaptureError
from dynprof.journal.edit_outcomes import IN_PROGRESS, in_words
from dynprof.journal.journal import printable
from dynprof.journal.stack_dump import why_silent
from dynprof.journal.status import LEADS, RUNNING, Status, load_status, of_present_run, with_disk
from dynprof.runtime.clock import iso
from dynprof.runtime.destination import is_url
from dynprof.runtime.job_files import may_be_read
from dynprof.runtime.layout import (
    CONFIG_NAME,
    INFO_DIR,
    MANIFESTS,
    STATUS_DIR,
    STATUS_FILES,
    WINDOW_RECORD,
)
from dynprof.runtime.plural import counted, listed_ranks
from dynprof.runtime.safe_open import open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dynprof.journal.edit_outcomes import Answer
    from dynprof.journal.status import JobStatus

SEARCH_S = 30.0
"""Seconds between two searches for new jobs: a search lists folders, which is slow on NFS."""
MAX_DEPTH = 4
"""How many folders below a given one are searched for jobs: ``user/experiment/run/prof_config``."""
MAX_CAPTURES = 50
"""Captures of a job that are read, the newest: each costs a file, and old ones say little."""
MAX_MANIFESTS = 64
"""Manifests of a window that are read, of the lowest ranks; ranks that agree have one record."""
ODD = 1.2
"""A rank with that many times the median step time differs from the others."""
CLOCK_TICK_S = 2.0
"""A folder that changed this recently may change again without a new time: it is read again."""
HEALTHS = ("stuck", "dead", "failed", "unknown", "starting", "ending", "alive", "stopped")
"""The health of ranks, the worst first."""
UNHEALTHY = HEALTHS[:4]
"""Health that an operator looks at."""

DAY_S = 86_400.0
"""Seconds after its end in which a job that died or failed is a trouble; later it is history."""
SLOW_S = 600.0
"""Seconds for which a single slow step is a trouble."""
_COLLECTIVES = "(distributed_c10d.py:"
"""In the place of a rank that waits in a collective of torch."""
MAX_NAMED = 8
"""Unhealthy ranks that are named; more are counted."""
MAX_CAUSE = 200
"""Characters of a job's own text in a trouble: the list shows many jobs."""

_TROUBLES = {"unknown": "cannot write on its disk"}
_File = TypeVar("_File")


@dataclass(frozen=True)
class Rank:
    """A rank of a job.

    Attributes:
        status: What it wrote last.
        health: Its health at the time of reading, as ``dynprof status`` shows it.
    """

    status: Status
    health: str

    @property
    def is_live(self) -> bool:
        """Whether its process has not ended."""
        return self.health in RUNNING


@dataclass(frozen=True)
class Capture:
    """A window of a job with its outcome.

    Attributes:
        folder: Its folder.
        manifest: The manifest of its lowest rank, without config, versions and ``left_out``.
        outcome: ``saved``; ``incomplete`` if steps or ranks are missing; ``failed`` if no rank has
            a trace; ``saving`` while files are written.
        ranks: The number of ranks that were to record it.
        saved: The number of ranks that have saved all of it.
    """

    folder: Path
    manifest: Manifest
    outcome: str
    ranks: int
    saved: int

    @property
    def opened_at(self) -> float:
        """When it opened, in seconds since the epoch; 0 if the manifest has no valid time."""
        opened = opened_at(self.manifest)
        return opened.timestamp() if opened else 0.0


@dataclass(frozen=True)
class Pace:
    """The step times of the live ranks of a job, in milliseconds.

    Attributes:
        least: The shortest recent mean of a rank.
        median: The median of the ranks.
        most: The longest.
        slowest: The rank with the longest.
    """

    least: float
    median: float
    most: float
    slowest: Rank


@dataclass(frozen=True)
class Job:
    """A job, as its files were at one time.

    Attributes:
        directory: The directory of its config, absolute.
        name: A short name, unique among the jobs of a fleet.
        ranks: Its ranks, in order of role and number.
        captures: Its newest captures, the newest first.
        read_at: The time of reading, in seconds since the epoch.
        unreadable: A status file that cannot be read, if none can; else empty.
    """

    directory: Path
    name: str
    ranks: tuple[Rank, ...] = ()
    captures: tuple[Capture, ...] = ()
    read_at: float = 0.0
    unreadable: str = ""

    @property
    def live(self) -> list[Rank]:
        """The ranks whose process has not ended."""
        return [rank for rank in self.ranks if rank.is_live]

    @property
    def health(self) -> str:
        """The worst health of its ranks, in the order of :data:`HEALTHS`; empty without ranks."""
        counts = self.counts
        return next((one for one in HEALTHS if counts[one]), "")

    @functools.cached_property
    def counts(self) -> Counter[str]:
        """The number of ranks of each health."""
        return Counter(rank.health for rank in self.ranks)

    @property
    def step(self) -> int:
        """The running step of the rank that is furthest behind; live ranks only, if there are."""
        ranks = self.live or self.ranks
        return min((rank.status.step for rank in ranks), default=0)

    @property
    def pace(self) -> Pace | None:
        """The step times of its live ranks; None while unknown."""
        found = [(rank.status.recent_ms(self.read_at), rank) for rank in self.live]
        known = [(ms, rank) for ms, rank in found if ms is not None]
        if not known:
            return None
        times = [ms for ms, _ in known]
        most_ms, slowest = max(known, key=operator.itemgetter(0))
        return Pace(min(times), statistics.median(times), most_ms, slowest)

    @property
    def leader(self) -> JobStatus | None:
        """What the leading rank here knows of all ranks; None if no rank here leads."""
        found = (rank.status for rank in self.ranks if rank.status.agreement == LEADS)
        return next((one.job for one in found if one.job), None)

    @functools.cached_property
    def troubles(self) -> list[str]:
        """What is wrong with it, in words, the worst first; empty if nothing is."""
        unhealthy = {
            health: [one for one in self.ranks if one.health == health] for health in UNHEALTHY
        }
        found = [self._unhealthy(health, those) for health, those in unhealthy.items() if those]
        changes = [one.status.pace_change for one in self.live if one.status.pace_change]
        if changes and changes[0].is_slower:
            one = changes[0]
            found.append(
                f"slower since {iso(one.at_s)}: {one.before_ms:.3g} ms a step before, "
                f"{one.after_ms:.3g} ms since"
            )
        if self.unreadable:
            found.append(f"status file {self.unreadable} cannot be read")
        live = [rank.status for rank in self.live]
        slow = _slow_steps(live, self.read_at)
        return [*found, *slow, *_memory(live), *_failed_request(live)]

    def _unhealthy(self, health: str, those: Sequence[Rank]) -> str:
        """Return which ranks have a health, since when, and the usual cause."""
        statuses = [one.status for one in those]
        if len(those) > MAX_NAMED:
            named = counted(len(those), "rank")
        elif any(one.role for one in statuses):
            named = ", ".join(one.named for one in statuses)
        else:
            named = listed_ranks([one.rank for one in statuses])
        of = f" of {len(self.ranks):,}" if len(self.ranks) > 1 else ""
        since = (
            self.read_at - one.stuck_s(self.read_at) if health == "stuck" else one.heartbeat
            for one in statuses
        )
        word = "at" if health == "failed" else "since"
        text = f"{named}{of} {_TROUBLES.get(health, health)} {word} {iso(min(since))}"
        every = [one.status for one in self.ranks]
        return f"{text}{_cause(health, statuses, every, self.read_at)}"

    @property
    def severity(self) -> int:
        """2 for ranks that are stuck or lost, 1 for other troubles, 0 for none.

        A job that ended like that more than a day ago has 0: its state says enough.
        """
        counts = self.counts
        wrote_at = max((rank.status.heartbeat for rank in self.ranks), default=0.0)
        if self.ranks and not self.live and self.read_at - wrote_at > DAY_S:
            return 0
        if counts["stuck"] or counts["dead"] or counts["failed"]:
            return 2
        return 1 if self.troubles else 0

    @property
    def urgency(self) -> tuple[int, bool, str]:
        """The key that sorts jobs: by severity, the stuck first, which may still be saved."""
        return -self.severity, self.health != "stuck", self.name

    @property
    def odd(self) -> list[Rank]:
        """Its ranks that differ from the others in health or in pace."""
        counts, pace = self.counts, self.pace
        usual = max(counts, key=counts.__getitem__, default="")
        most_ms = ODD * pace.median if pace else float("inf")
        return [
            rank
            for rank in self.ranks
            if rank.health in UNHEALTHY
            or rank.health != usual
            or (rank.is_live and (rank.status.step_ms or 0.0) > most_ms)
        ]


def _bounded(text: str) -> str:
    """Return a text of a job on one line, not too long."""
    text = printable(" ".join(text.split()))
    return text if len(text) <= MAX_CAUSE else f"{text[:MAX_CAUSE]}…"


def _cause(health: str, unhealthy: Sequence[Status], every: Sequence[Status], now_s: float) -> str:
    """Return what explains the health of some ranks best, after a colon; nothing if unknown.

    Ranks wait in a collective for one that is elsewhere, and fail there after another one has died.
    """
    deaths = sorted((one for one in every if one.death), key=lambda one: one.death_at)
    if health in ("dead", "failed") and deaths:
        return f": {_bounded(deaths[0].death)}"
    silent = [one for one in unhealthy if not one.writes(now_s)]
    if health == "stuck" and silent:
        why = why_silent(silent[0], silent[0].process_state() or "")
        return f": {silent[0].named} {_bounded(why)}"
    places = Counter(filter(None, (one.stuck_at or one.failure for one in unhealthy)))
    own = [place for place in places if _COLLECTIVES not in place.partition(", called at ")[0]]
    if not places:
        return ""
    if not own or len(places) == 1:
        return f": {_bounded(places.most_common(1)[0][0])}"
    place = min(own, key=places.__getitem__)
    those = [one.named for one in unhealthy if place in (one.stuck_at, one.failure)]
    return f": {', '.join(those[:MAX_NAMED])} in {_bounded(place)}"


def _slow_steps(live: Sequence[Status], now_s: float) -> Iterator[str]:
    """Yield what the recent slow step did that took most, apart from waiting for other ranks."""
    lasts = [one.watch.last for one in live if one.watch and one.watch.last]
    recent = [one for one in lasts if now_s - one.ended_at < SLOW_S]
    if recent:
        last = max(recent, key=lambda one: one.ms - one.usual_ms - one.waited_ms)
        usual = f", {last.usual_ms:,.0f} ms is usual" if last.usual_ms else ""
        text = f": {_bounded(last.text)}" if last.text else ""
        yield (
            f"single slow steps; step {last.step:,}, at {iso(last.ended_at)}, took "
            f"{last.ms:,.0f} ms{usual}{text}"
        )


def _memory(live: Sequence[Status]) -> Iterator[str]:
    growths = [growth for one in live for growth in one.memory.growths]
    if growths:
        most = max(growths, key=lambda growth: growth.mb_per_hour)
        yield (
            f"{_bounded(most.kind)} memory grows by {most.mb_per_hour:,.0f} MB an hour since "
            f"{iso(most.since_s)}: {most.from_mb:,.0f} MB then, {most.to_mb:,.0f} MB now"
        )
    if low := next((one.memory.low for one in live if one.memory.low), ""):
        yield f"memory is low: {_bounded(low)}"


def _failed_request(live: Sequence[Status]) -> Iterator[str]:
    """Yield why the newest request failed or was refused, if it was."""
    for answer in failed_answers(live, "failed", "refused")[:1]:
        yield f"request {answer.number} {_bounded(in_words(answer.outcome, answer.text))}"


def failed_answers(live: Sequence[Status], *outcomes: str) -> list[Answer]:
    """Return the answers with some outcomes to a job's newest request, one for each rank."""
    answers = [answer for one in live for answer in one.edits]
    newest = max(answers, key=lambda answer: answer.edited_at, default=None)
    return [
        answer
        for answer in answers
        if newest
        and (answer.edited_at, answer.sha256) == (newest.edited_at, newest.sha256)
        and answer.outcome in outcomes
    ]


@dataclass
class _Cache(Generic[_File]):
    """The content of files, by path, with the facts that tell whether it has changed."""

    found: dict[Path, tuple[tuple[int, ...], _File]] = field(default_factory=dict)

    def read(self, path: Path, facts: tuple[int, ...], load: Callable[[], _File]) -> _File:
        """Return the content of a file, which is loaded if its facts have changed."""
        known = self.found.get(path)
        if known is None or known[0] != facts:
            known = self.found[path] = (facts, load())
        return known[1]

    def keep(self, used: set[Path]) -> None:
        """Drop all other files."""
        for path in self.found.keys() - used:
            del self.found[path]


class Fleet:
    """Reads the jobs below some directories, again and again; not thread-safe.

    Args:
        paths: The directories: of a config, or above such directories.
        wall_s: Return the time in seconds since the epoch.
    """

    def __init__(self, paths: Iterable[Path], wall_s: Callable[[], float] = time.time) -> None:
        self._paths = [path.absolute() for path in paths]
        self._wall_s = wall_s
        self._searched_at = float("-inf")
        self._directories: list[Path] = []
        self._statuses = _Cache[Status | None]()
        self._captures = _Cache[Capture | None]()
        self._shared: dict[object, Any] = {}

    def read(self) -> tuple[Job, ...]:
        """Return all jobs, in order of their names. A file that cannot be read counts as none."""
        now_s = self._wall_s()
        if not 0 <= now_s - self._searched_at < SEARCH_S:
            self._directories = sorted(
                {found for path in self._paths for found in jobs_below(path)}
            )
            self._searched_at = now_s
        names = short_names(self._directories)
        self._shared = {}
        used: set[Path] = set()
        jobs = [
            self._job(directory, name, now_s, used)
            for directory, name in zip(self._directories, names, strict=True)
        ]
        self._statuses.keep(used)
        self._captures.keep(used)
        return tuple(sorted(jobs, key=lambda job: job.name))

    def _job(self, directory: Path, name: str, now_s: float, used: set[Path]) -> Job:
        place = directory / STATUS_DIR
        statuses = [with_disk(one, place, now_s) for one in self._read_statuses(place, used)]
        statuses = of_present_run(statuses, now_s)
        statuses.sort(key=lambda one: (one.role, one.rank))
        ranks = tuple(Rank(one, one.health(now_s)) for one in statuses)
        read = self._read_captures(_places(directory, statuses), now_s, used)
        pending = _pending(rank.status for rank in ranks if rank.is_live)
        captures = tuple(
            replace(one, outcome="saving") if _key(one.manifest) in pending else one for one in read
        )
        files = () if ranks else (directory / STATUS_DIR).glob(STATUS_FILES)
        unreadable = min((path.name for path in files), default="")
        return Job(directory, name, ranks, captures, now_s, unreadable)

    def _read_statuses(self, place: Path, used: set[Path]) -> Iterator[Status]:
        with contextlib.suppress(OSError), open_folder(place) as folder:
            for path in place.glob(STATUS_FILES):
                with contextlib.suppress(OSError):
                    facts = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
                    key = facts.st_mtime_ns, facts.st_size, facts.st_ino
                    used.add(path)
                    status = self._statuses.read(
                        path, key, functools.partial(self._status, path, folder)
                    )
                    if status:
                        yield status

    def _status(self, path: Path, folder: int) -> Status | None:
        """Return a status whose equal parts are those of other ranks.

        That halves the memory of 10,000 ranks. The steps of the last seconds are left out: they
        compare ranks at one moment, which no reading of a fleet does.
        """
        with contextlib.suppress(CaptureError):
            status = load_status(path, folder)
            alike = {
                name: self._shared.setdefault(value, value)
                for name in ("edits", "profilers", "recent_pace", "host", "watching")
                if (value := getattr(status, name))
            }
            return replace(status, recent_steps=(), **alike)
        return None

    def _read_captures(
        self, places: Iterable[Path], now_s: float, used: set[Path]
    ) -> Iterator[Capture]:
        folders = [folder for place in places for folder in windows_in(place)]
        folders.sort(key=lambda folder: folder.name.split("_")[2], reverse=True)  # by time
        for folder in folders[:MAX_CAPTURES]:
            info = folder / INFO_DIR
            with contextlib.suppress(OSError):
                changed_ns = info.lstat().st_mtime_ns  # files in it are replaced, never changed
                is_recent = now_s - changed_ns / 1e9 < CLOCK_TICK_S
                key = changed_ns, time.monotonic_ns() if is_recent else 0
                used.add(info)
                capture = self._captures.read(info, key, functools.partial(_capture, folder))
                if capture:
                    yield capture


def _places(directory: Path, statuses: Sequence[Status]) -> list[Path]:
    """Return the local directories with folders of windows, as far as the status files know."""
    found = {directory}
    for status in statuses:
        last = status.last_capture
        if last and not is_url(last):
            found.add((directory / last).parent.parent.parent)
        found.update(Path(place) for place in status.prof_dirs if not is_url(place))
    return sorted(found)


def _pending(live: Iterable[Status]) -> set[tuple[str, str]]:
    """Return the saves whose windows are not over yet, by time and digest."""
    edits = (edit for status in live for edit in status.edits if edit.outcome in IN_PROGRESS)
    return {(iso(edit.edited_at), edit.sha256) for edit in edits}


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest.request.edited_at, manifest.request.sha256


def _capture(folder: Path) -> Capture | None:
    """Return the capture in the folder of a window; None if it has no manifest that can be read."""
    info = folder / INFO_DIR
    paths = sorted(info.glob(MANIFESTS), key=lambda path: (len(path.name), path.name))
    record: WindowRecord | None = None
    with contextlib.suppress(CaptureError):
        record = load_window_record(info / WINDOW_RECORD)
    manifests = list(_manifests(paths[: 1 if record else MAX_MANIFESTS]))
    if not manifests:
        return None
    if record:
        ranks = len(record.asked)
        saved = sum(one.is_whole for one in record.ranks.values())
        with_trace = sum(one.outcome == "saved" for one in record.ranks.values())
    else:
        ranks = len(paths)
        saved = sum(one.complete for one in manifests)
        with_trace = sum(one.trace is not None for one in manifests)
    if saved == (ranks if record else len(manifests)):
        outcome = "saved"
    else:
        outcome = "incomplete" if with_trace else "failed"
    return Capture(folder, manifests[0], outcome, ranks, saved)


def _manifests(paths: Iterable[Path]) -> Iterator[Manifest]:
    for path in paths:
        with contextlib.suppress(CaptureError):
            if may_be_read(path):
                yield _in_short(load_manifest(path))


def _in_short(manifest: Manifest) -> Manifest:
    """Return a manifest without what is long: a fleet keeps tens of thousands."""
    every = {"every": manifest.request.config.get("every")}
    request = manifest.request.model_copy(update={"config": every})
    return manifest.model_copy(update={"request": request, "versions": {}, "left_out": {}})


def jobs_below(path: Path) -> Iterator[Path]:
    """Yield the directories of configs at or below a path, without following links below it."""
    pending = [(path, 0)]
    while pending:
        place, depth = pending.pop()
        try:
            with os.scandir(place) as entries:
                found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            continue
        if CONFIG_NAME in found or found.get(STATUS_DIR):
            yield place
        elif depth < MAX_DEPTH:
            folders = (name for name, is_folder in found.items() if is_folder)
            pending += [(place / name, depth + 1) for name in folders if not name.startswith(".")]


def short_names(directories: Sequence[Path]) -> list[str]:
    """Return the shortest endings of paths that tell them apart, of two parts where there are."""
    parts, names = 2, list[str]()
    while True:
        names = ["/".join(path.parts[-parts:]).lstrip("/") for path in directories]
        if len(set(names)) == len(names) or parts > max(len(path.parts) for path in directories):
            return names
        parts += 1

"""The state of many jobs as metrics, for Prometheus and OpenTelemetry.

Each metric has a name and a unit of OpenTelemetry. Prometheus' name follows from both by the rule
that its receiver applies, so that alerts and dashboards work with either.

The label of the job is ``training_job``. Prometheus itself labels all metrics of one exporter with
``job``, and would rename a label of that name, unless each user sets ``honor_labels``.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from dynprof.fleet.jobs import HEALTHS, Fleet, Job, Rank, failed_answers
from dynprof.journal.journal import printable
from dynprof.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from prometheus_client.core import Metric as Family

    from dynprof.captures.manifest import Cost, Manifest
    from dynprof.fleet.jobs import Capture

OUTCOMES = ("saved", "incomplete", "failed", "saving")
SUFFIXES = {"s": "_seconds", "By": "_bytes", "1": "_ratio"}
"""What Prometheus' receiver appends for a unit of OpenTelemetry; it drops units in braces."""
FRESH_S = 1.0
"""Seconds for which a reading is used again: two servers of Prometheus may scrape at once."""
MAX_TEXT = 256
"""Characters of a text from a status file; a role has 32, the name of a machine up to 253."""

Labels = dict[str, str]
Point = tuple[Labels, float]


@dataclass(frozen=True)
class Metric:
    """A metric of each job, or of each rank.

    Attributes:
        name: Its name in OpenTelemetry.
        unit: Its unit in UCUM, as OpenTelemetry has it; in braces if it is counted.
        text: What it is.
        is_counter: Whether it only rises, until its process starts again.
    """

    name: str
    unit: str
    text: str
    is_counter: bool = False

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus."""
        total = "_total" if self.is_counter else ""
        return f"{self.name.replace('.', '_')}{SUFFIXES.get(self.unit, '')}{total}"


@dataclass(frozen=True)
class Reading:
    """All jobs at one time.

    Attributes:
        jobs: The jobs.
        at_s: When, in seconds since the epoch.
        took_s: Seconds that the reading took.
    """

    jobs: tuple[Job, ...]
    at_s: float
    took_s: float


class Readings:
    """Reads the jobs below some directories, for any thread.

    Args:
        paths: The directories.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self._fleet = Fleet(paths)
        self._lock = threading.Lock()
        self._last: Reading | None = None

    def read(self) -> Reading:
        """Return the current state; that of up to a second ago if another thread has read it."""
        with self._lock:
            if self._last and 0 <= time.time() - self._last.at_s < FRESH_S:
                return self._last
            self._last = None  # else old and new statuses of 10,000 ranks are in memory
            began_s = time.monotonic()
            jobs = self._fleet.read()
            self._last = Reading(jobs, time.time(), time.monotonic() - began_s)
            return self._last


class Collector:
    """Gives the metrics of the current state to prometheus_client.

    Args:
        readings: Reads the jobs.
        per_rank: Whether each rank has metrics of its own.
    """

    def __init__(self, readings: Readings, *, per_rank: bool = False) -> None:
        self._readings, self._per_rank = readings, per_rank

    def collect(self) -> Iterator[Family]:
        """Yield each metric with its values."""
        for metric, points in measured(self._readings.read(), per_rank=self._per_rank):
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(metric.prometheus_name, metric.text)
            for labels, value in points:
                family.add_sample(metric.prometheus_name, labels, value)
            yield family

    def exposition(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self)


def measured(
    reading: Reading, *, per_rank: bool = False
) -> Iterator[tuple[Metric, Sequence[Point]]]:
    """Yield each metric with its values; a value that is unknown is left out.

    Args:
        reading: The jobs.
        per_rank: Whether each rank has metrics of its own.
    """
    yield _BUILD, [({"version": __version__}, 1.0)]
    yield _JOBS, [({}, float(len(reading.jobs)))]
    yield _READ_AT, [({}, reading.at_s)]
    yield _READ_S, [({}, reading.took_s)]
    jobs = {_text(job.name): job for job in reading.jobs}  # escaped names could be equal
    yield from _of_directories(jobs)
    parts = [part for name, job in jobs.items() for part in _by_role(name, job)]
    for metric, number in _OF_JOB:
        yield metric, _known((labels, number(part)) for labels, part in parts)
    for metric, label, counts in _COUNTS_OF_JOB:
        yield (
            metric,
            [
                ({**labels, label: key}, float(count))
                for labels, part in parts
                for key, count in counts(part).items()
            ],
        )
    if per_rank:
        ranks = [found for labels, part in parts for found in _each_rank(labels, part)]
        for metric, of_rank in _OF_RANK:
            yield metric, _known((labels, of_rank(rank)) for labels, rank in ranks)


def _of_directories(jobs: Mapping[str, Job]) -> Iterator[tuple[Metric, Sequence[Point]]]:
    info, free, size = list[Point](), list[Point](), list[Point]()
    for name, job in jobs.items():
        labels = {"training_job": name}
        info.append(({**labels, "directory": _text(str(job.directory))}, 1.0))
        try:
            disk = os.statvfs(job.directory)
        except OSError:  # it was removed
            continue
        free.append((labels, float(disk.f_bavail * disk.f_frsize)))
        size.append((labels, float(disk.f_blocks * disk.f_frsize)))
    yield _INFO, info
    yield _DISK_FREE, free
    yield _DISK_SIZE, size


def _by_role(name: str, job: Job) -> Iterator[tuple[Labels, Job]]:
    """Yield the part of a job with each role, with its labels; jobs without roles have one part."""
    ranks: dict[str, list[Rank]] = {}
    for rank in job.ranks:
        ranks.setdefault(_text(rank.status.role)[:MAX_TEXT], []).append(rank)
    captures: dict[str, list[Capture]] = {}
    for capture in job.captures:
        captures.setdefault(_text(capture.manifest.role)[:MAX_TEXT], []).append(capture)
    for role in sorted({*ranks, *captures} or {""}):
        those = tuple(ranks.get(role, ())), tuple(captures.get(role, ()))
        labels = {"training_job": name, "role": role}
        yield labels, replace(job, ranks=those[0], captures=those[1])


def _each_rank(labels: Labels, part: Job) -> Iterator[tuple[Labels, Rank]]:
    """Yield each rank with its labels; of processes with the same ones, the one that wrote last."""
    newest: dict[tuple[int, str], Rank] = {}
    for rank in part.ranks:
        key = rank.status.rank, _text(rank.status.host)[:MAX_TEXT]
        if key not in newest or rank.status.heartbeat > newest[key].status.heartbeat:
            newest[key] = rank
    for (number, host), rank in newest.items():
        yield {**labels, "rank": str(number), "host": host}, rank


def _known(points: Iterable[tuple[Labels, float | None]]) -> list[Point]:
    return [(labels, float(value)) for labels, value in points if value is not None]


def _text(text: str) -> str:
    """Return a name as a label; bytes of a path that are not UTF-8 are escaped."""
    return printable(text.encode("utf-8", "backslashreplace").decode())


def _s(ms: float | None) -> float | None:
    return None if ms is None else ms / 1e3


def _steps(part: Job) -> float | None:
    return part.step if part.ranks else None


def _last_step_s(rank: Rank) -> float | None:
    """Return when the step counter last changed; None for a status without a time."""
    status = rank.status
    return status.heartbeat - status.since_last_step_s if status.heartbeat else None


def _job_last_step_s(part: Job) -> float | None:
    """Return it for the live rank whose last step is the oldest; for an ended job, the last one."""
    choose, ranks = (min, part.live) if part.live else (max, part.ranks)
    return choose(filter(None, map(_last_step_s, ranks)), default=None)


def _least(part: Job) -> float | None:
    return part.pace.least / 1e3 if part.pace else None


def _median(part: Job) -> float | None:
    return part.pace.median / 1e3 if part.pace else None


def _most(part: Job) -> float | None:
    return part.pace.most / 1e3 if part.pace else None


def _slowest(part: Job) -> float | None:
    return part.pace.slowest.status.rank if part.pace else None


def _usual(part: Job) -> float | None:
    """Return the longest usual time of a live rank: ranks wait for each other."""
    return _largest(part.live, lambda rank: _s(rank.status.hour_ms))


def _largest(ranks: Iterable[Rank], value: Callable[[Rank], float | None]) -> float | None:
    return max((one for one in map(value, ranks) if one is not None), default=None)


def _memory(field: str) -> Callable[[Rank], float | None]:
    def of(rank: Rank) -> float | None:
        megabytes = getattr(rank.status.memory, field)
        return megabytes * 1e6 if megabytes else None

    return of


_resident, _allocated, _reserved = map(_memory, ("resident_mb", "allocated_mb", "reserved_mb"))


def _newest_change(part: Job) -> tuple[float, float] | None:
    """Return when the pace last changed, and how many times as long a step takes since."""
    found = [rank.status.pace_change for rank in part.ranks]
    known = [one for one in found if one and one.before_ms > 0]
    newest = max(known, key=lambda one: one.at_s, default=None)
    return (newest.at_s, newest.after_ms / newest.before_ms) if newest else None


def _changed_at_s(part: Job) -> float | None:
    change = _newest_change(part)
    return change[0] if change else None


def _change(part: Job) -> float | None:
    change = _newest_change(part)
    return change[1] if change else None


def _slow_steps(part: Job) -> float | None:
    watches = [rank.status.watch for rank in part.live if rank.status.watch]
    return sum(watch.slow_steps for watch in watches) if watches else None


def _missing(part: Job) -> float | None:
    return part.leader.states.get("missing", 0) if part.live and part.leader else None


def _newest(part: Job) -> Capture | None:
    return next((one for one in part.captures if one.outcome != "saving"), None)


def _of_cost(number: Callable[[Cost], float | None]) -> Callable[[Job], float | None]:
    def of(part: Job) -> float | None:
        newest = _newest(part)
        return _s(number(newest.manifest.cost)) if newest else None

    return of


def _of_capture(number: Callable[[Manifest], float | None]) -> Callable[[Job], float | None]:
    def of(part: Job) -> float | None:
        newest = _newest(part)
        return number(newest.manifest) if newest else None

    return of


def _opened_s(part: Job) -> float | None:
    newest = _newest(part)
    return newest.opened_at or None if newest else None


def _healths(part: Job) -> Mapping[str, int]:
    return {health: part.counts[health] for health in HEALTHS}


def _outcomes(part: Job) -> Mapping[str, int]:
    outcomes = [capture.outcome for capture in part.captures]
    return {outcome: outcomes.count(outcome) for outcome in OUTCOMES}


_BUILD = Metric("dynprof.build.info", "", "Version of dynprof that reads the jobs.")
_JOBS = Metric("dynprof.jobs", "{job}", "Jobs in the directories.")
_READ_AT = Metric("dynprof.read.timestamp", "s", "When the jobs were read.")
_READ_S = Metric("dynprof.read.duration", "s", "How long reading the jobs took.")
_INFO = Metric("dynprof.job.info", "", "Directory of the job.")
_DISK_FREE = Metric("dynprof.job.disk.free", "By", "Free disk space in the job's directory.")
_DISK_SIZE = Metric("dynprof.job.disk.size", "By", "Size of the disk of the job's directory.")
_OF_JOB: tuple[tuple[Metric, Callable[[Job], float | None]], ...] = (
    (
        Metric(
            "dynprof.job.steps",
            "{step}",
            "Steps that the rank furthest behind has ended, of the live ranks.",
            is_counter=True,
        ),
        _steps,
    ),
    (
        Metric(
            "dynprof.job.last_step.timestamp",
            "s",
            "When the step counter last changed, of the live rank whose last step is the oldest.",
        ),
        _job_last_step_s,
    ),
    (
        Metric("dynprof.job.step.duration.min", "s", "Recent step time of the fastest rank."),
        _least,
    ),
    (
        Metric("dynprof.job.step.duration.median", "s", "Median recent step time of the ranks."),
        _median,
    ),
    (
        Metric("dynprof.job.step.duration.max", "s", "Recent step time of the slowest rank."),
        _most,
    ),
    (
        Metric("dynprof.job.step.duration.usual", "s", "Median step time of the last hour."),
        _usual,
    ),
    (Metric("dynprof.job.slowest_rank", "", "Number of the slowest rank."), _slowest),
    (
        Metric(
            "dynprof.job.longest_standstill",
            "s",
            "Longest time that the step counter of a live rank stood still, up to now.",
        ),
        lambda part: _largest(
            part.live,
            lambda rank: max(rank.status.longest_s or 0.0, rank.status.standing_s(part.read_at)),
        ),
    ),
    (
        Metric("dynprof.job.world_size", "{rank}", "Ranks that the job should have."),
        lambda part: _largest(part.ranks, lambda rank: rank.status.world_size),
    ),
    (
        Metric("dynprof.job.ranks.missing", "{rank}", "Ranks that do not answer the leading one."),
        _missing,
    ),
    (
        Metric("dynprof.job.pace_change.timestamp", "s", "When the usual step time last changed."),
        _changed_at_s,
    ),
    (
        Metric(
            "dynprof.job.pace_change", "1", "Usual step time since that change, by that before it."
        ),
        _change,
    ),
    (
        Metric(
            "dynprof.job.slow_steps",
            "{step}",
            "Slow steps of all ranks, since the watch for them is on.",
            is_counter=True,
        ),
        _slow_steps,
    ),
    (
        Metric(
            "dynprof.job.memory.resident.max", "By", "Resident memory of the rank with the most."
        ),
        lambda part: _largest(part.live, _resident),
    ),
    (
        Metric(
            "dynprof.job.memory.device_allocated.max",
            "By",
            "Device memory that tensors use, of the rank with the most.",
        ),
        lambda part: _largest(part.live, _allocated),
    ),
    (
        Metric(
            "dynprof.job.memory.device_reserved.max",
            "By",
            "Device memory that torch's allocator holds, of the rank with the most.",
        ),
        lambda part: _largest(part.live, _reserved),
    ),
    (
        Metric("dynprof.job.ranks.memory_growing", "{rank}", "Live ranks whose memory grows."),
        lambda part: sum(bool(rank.status.memory.growths) for rank in part.live),
    ),
    (
        Metric(
            "dynprof.job.ranks.memory_low", "{rank}", "Live ranks that have nearly no memory left."
        ),
        lambda part: sum(bool(rank.status.memory.low) for rank in part.live),
    ),
    (
        Metric(
            "dynprof.job.ranks.request_failed",
            "{rank}",
            "Live ranks on which the newest request failed or was refused.",
        ),
        lambda part: len(failed_answers([rank.status for rank in part.live], "failed", "refused")),
    ),
    (
        Metric("dynprof.job.last_capture.timestamp", "s", "When the newest capture opened."),
        _opened_s,
    ),
    (
        Metric(
            "dynprof.job.last_capture.cost",
            "s",
            "Time that the job lost to the newest capture, until it was saved.",
        ),
        _of_cost(lambda cost: cost.extra_ms),
    ),
    (
        Metric(
            "dynprof.job.last_capture.pause",
            "s",
            "Time that the training waited for the newest capture to open and close.",
        ),
        _of_cost(lambda cost: cost.open_ms + cost.close_ms),
    ),
    (
        Metric(
            "dynprof.job.last_capture.save.duration",
            "s",
            "How long saving the newest capture took.",
        ),
        _of_cost(lambda cost: cost.save_ms),
    ),
    (
        Metric("dynprof.job.last_capture.size", "By", "Size of the newest capture's trace."),
        _of_capture(lambda manifest: manifest.trace_bytes),
    ),
)
"""The metrics of a job, or of each of its roles. Those of a capture are of its lowest rank."""
_COUNTS_OF_JOB: tuple[tuple[Metric, str, Callable[[Job], Mapping[str, int]]], ...] = (
    (Metric("dynprof.job.ranks", "{rank}", "Ranks by health."), "health", _healths),
    (
        Metric("dynprof.job.captures", "{capture}", "The newest captures, up to 50, by outcome."),
        "outcome",
        _outcomes,
    ),
)
_OF_RANK: tuple[tuple[Metric, Callable[[Rank], float | None]], ...] = (
    (
        Metric("dynprof.rank.steps", "{step}", "Steps that the rank has ended.", is_counter=True),
        lambda rank: rank.status.step,
    ),
    (
        Metric(
            "dynprof.rank.last_step.timestamp", "s", "When the rank's step counter last changed."
        ),
        _last_step_s,
    ),
    (
        Metric("dynprof.rank.step.duration", "s", "Recent step time of the rank."),
        lambda rank: _s(rank.status.recent_ms(time.time())) if rank.is_live else None,
    ),
    (
        Metric("dynprof.rank.live", "", "Whether the process of the rank runs: 1, or 0."),
        lambda rank: rank.is_live,
    ),
    (
        Metric("dynprof.rank.stuck", "", "Whether the rank is stuck: 1, or 0."),
        lambda rank: rank.health == "stuck",
    ),
    (
        Metric("dynprof.rank.memory.resident", "By", "Resident memory of the rank."),
        lambda rank: _resident(rank) if rank.is_live else None,
    ),
    (
        Metric("dynprof.rank.memory.device_allocated", "By", "Device memory that its tensors use."),
        lambda rank: _allocated(rank) if rank.is_live else None,
    ),
)
METRICS = (
    *(_BUILD, _JOBS, _READ_AT, _READ_S, _INFO, _DISK_FREE, _DISK_SIZE),
    *(metric for metric, _ in _OF_JOB),
    *(metric for metric, _, _ in _COUNTS_OF_JOB),
    *(metric for metric, _ in _OF_RANK),
)
"""All metrics."""

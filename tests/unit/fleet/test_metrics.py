"""The metrics of jobs: which there are, their values, and how many."""

from __future__ import annotations

import dataclasses
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_strictly
from prometheus_client.parser import text_string_to_metric_families as parsed

from dynprof.fleet.metrics import METRICS, Collector, Readings, measured
from dynprof.journal.edit_outcomes import Answer
from tests.known_jobs import EVERYTHING, NOW_S, job, reading, with_capture

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dynprof.fleet.jobs import Job
    from dynprof.fleet.metrics import Reading
    from dynprof.journal.status import Status

UNITS = {"s": "seconds", "By": "bytes", "1": "ratio"}
"""The rule of OpenTelemetry's page on the compatibility with Prometheus."""


class Given:
    """Gives jobs in place of those of directories."""

    def __init__(self, *jobs: Job) -> None:
        self._jobs = jobs

    def read(self) -> Reading:
        """Return the jobs."""
        return reading(*self._jobs)


def exposed(*jobs: Job, per_rank: bool = False) -> dict[tuple[str, frozenset[Any]], float]:
    """Return the values that Prometheus reads, by name and labels; each is given once."""
    given: Any = Given(*jobs)
    text = Collector(given, per_rank=per_rank).exposition().decode()
    samples = [sample for family in parsed(text) for sample in family.samples]
    found = {(one.name, frozenset(one.labels.items())): one.value for one in samples}
    assert len(found) == len(samples)
    return found


def values(found: dict[tuple[str, frozenset[Any]], float], name: str) -> dict[str, float]:
    """Return the values of a name, by the label that is not the job's."""
    plain = ("training_job", "role")
    return {
        ",".join(sorted(text for label, text in labels if label not in plain)): value
        for (one, labels), value in found.items()
        if one == f"dynprof_{name}"
    }


def ranks(count: int) -> Iterable[Status]:
    """Yield the statuses of ranks, of which rank 1 is the slowest."""
    for rank in range(count):
        step_ms = 80.0 if rank == 1 else 20.0
        yield dataclasses.replace(EVERYTHING, rank=rank, step=100 + rank, step_ms=step_ms)


def test_numbers_of_a_job_are_those_of_its_ranks() -> None:
    """Times are in seconds, memory in bytes; a dead rank counts as dead and for nothing else."""
    dead = dataclasses.replace(EVERYTHING, rank=3, step=7, step_ms=900.0, heartbeat=NOW_S - 600)
    found = exposed(job(*ranks(3), dead))
    single = {
        "job_steps_total": 100,
        "job_last_step_timestamp_seconds": NOW_S - 3,
        "job_step_duration_min_seconds": 0.02,
        "job_step_duration_median_seconds": 0.02,
        "job_step_duration_max_seconds": 0.08,
        "job_step_duration_usual_seconds": 0.02,
        "job_slowest_rank": 1,
        "job_longest_standstill_seconds": 7,
        "job_world_size": 5,
        "job_ranks_missing": 1,
        "job_pace_change_timestamp_seconds": NOW_S - 100,
        "job_pace_change_ratio": 1.5,
        "job_slow_steps_total": 12,
        "job_memory_resident_max_bytes": 500e6,
        "job_memory_device_allocated_max_bytes": 300e6,
        "job_memory_device_reserved_max_bytes": 400e6,
        "job_ranks_memory_growing": 3,
        "job_ranks_memory_low": 3,
        "job_ranks_request_failed": 0,
        "read_timestamp_seconds": NOW_S,
        "read_duration_seconds": 0.5,
    }
    assert {name: values(found, name) for name in single} == {
        name: {"": pytest.approx(value)} for name, value in single.items()
    }
    none = dict.fromkeys(("starting", "stuck", "unknown", "ending", "failed", "stopped"), 0)
    assert values(found, "job_ranks") == {"alive": 3, "dead": 1, **none}


def test_ranks_count_on_which_the_newest_request_failed() -> None:
    """Failures of older requests, and of ranks that have ended, do not count."""
    older, newest = Answer(1, "a", 1e9, "failed"), Answer(2, "b", 2e9, "failed")
    live = [dataclasses.replace(EVERYTHING, rank=rank, edits=(older, newest)) for rank in (0, 1)]
    saved = dataclasses.replace(EVERYTHING, rank=2, edits=(older, Answer(2, "b", 2e9, "saved")))
    ended = dataclasses.replace(live[0], rank=3, state="stopped")
    assert values(exposed(job(*live, saved, ended)), "job_ranks_request_failed") == {"": 2}
    assert values(exposed(job(saved)), "job_ranks_request_failed") == {"": 0}
    refused = dataclasses.replace(EVERYTHING, edits=(Answer(3, "c", 3e9, "refused"),))
    assert values(exposed(job(refused)), "job_ranks_request_failed") == {"": 1}


def test_standing_still_shows_as_an_old_last_step() -> None:
    """The rank whose last step is the oldest dates it, as long as it lives."""
    hangs = dataclasses.replace(EVERYTHING, rank=1, since_last_step_s=400.0)
    name = "job_last_step_timestamp_seconds"
    assert values(exposed(job(EVERYTHING, hangs)), name) == {"": NOW_S - 401}
    stopped = dataclasses.replace(hangs, state="stopped")
    assert values(exposed(job(EVERYTHING, stopped)), name) == {"": NOW_S - 3}
    ended = dataclasses.replace(EVERYTHING, state="stopped")
    assert values(exposed(job(ended, stopped)), name) == {"": NOW_S - 3}


def test_each_role_has_numbers_of_its_own() -> None:
    """Roles of a job step apart, so that a number over both would say nothing."""
    rollout = dataclasses.replace(EVERYTHING, role="rollout", step=9, step_ms=500.0)
    found = exposed(job(EVERYTHING, rollout))
    steps = {
        dict(labels)["role"]: value
        for (name, labels), value in found.items()
        if name == "dynprof_job_steps_total"
    }
    assert steps == {"actor": 100, "rollout": 9}


def test_captures_are_counted_by_outcome_with_the_cost_of_the_newest(tmp_path: Path) -> None:
    """The counts are those of the folders, and the times those of the newest manifest."""
    found = exposed(with_capture(tmp_path))
    outcomes = {"saved": 1, "incomplete": 0, "failed": 0, "saving": 0}
    assert values(found, "job_captures") == outcomes
    newest = {
        "timestamp_seconds": NOW_S - 10, "cost_seconds": 0.04, "pause_seconds": 0.003,
        "save_duration_seconds": 0.5, "size_bytes": 1234,
    }  # fmt: skip
    for name, value in newest.items():
        assert values(found, f"job_last_capture_{name}") == {"": pytest.approx(value)}
    disk = os.statvfs(tmp_path)
    assert values(found, "job_disk_size_bytes") == {"": disk.f_blocks * disk.f_frsize}


def test_names_follow_from_those_of_opentelemetry() -> None:
    """A receiver that translates OpenTelemetry's names arrives at Prometheus' names."""
    assert len({one.prometheus_name for one in METRICS}) == len(METRICS)
    for one in METRICS:
        assert re.fullmatch(r"dynprof(\.[a-z_]+)+", one.name)
        parts = one.name.split(".")
        parts += [UNITS[one.unit]] if one.unit in UNITS else []
        parts += ["total"] if one.is_counter else []
        assert one.prometheus_name == "_".join(parts)
        assert one.unit in UNITS or re.fullmatch(r"(\{[a-z]+\})?", one.unit)


def test_many_ranks_have_as_many_numbers_as_few() -> None:
    """Only --per-rank adds metrics for each rank, always the same count."""
    few, many = exposed(job(*ranks(2))), exposed(job(*ranks(10_000)))
    assert few.keys() == many.keys()
    assert len(many) < 60
    each = exposed(job(*ranks(1000)), per_rank=True)
    assert len(each) - len(few) == 7 * 1000
    steps = values(each, "rank_steps_total")
    assert steps == {f"{rank},node9": 100 + rank for rank in range(1000)}


def test_many_jobs_have_the_same_numbers_each() -> None:
    """A thousand jobs have a thousand times the metrics of one."""
    whole = [
        exposed(*(job(EVERYTHING, name=f"run/{n}") for n in range(count))) for count in (1, 1000)
    ]
    general = 4  # about the reading itself
    assert len(whole[1]) - general == 1000 * (len(whole[0]) - general)


def test_two_processes_of_one_rank_are_given_once() -> None:
    """Prometheus and node_exporter refuse a value that is given twice."""
    older = dataclasses.replace(EVERYTHING, pid=2, step=5, heartbeat=NOW_S - 9)
    found = exposed(job(EVERYTHING, older), per_rank=True)
    assert values(found, "rank_steps_total") == {"0,node9": 100}


@pytest.mark.parametrize(
    "name", ['a"b\\c', "line\nbreak", "\x1b[31m", b"\xff\xfe".decode(errors="surrogateescape")]
)
def test_odd_names_are_escaped(name: str) -> None:
    """A name of any bytes gives one label that Prometheus can read, on one line."""
    status = dataclasses.replace(EVERYTHING, host=f"{name}{'x' * 10_000}")
    for metric, labels in exposed(job(status, name=name), per_rank=True):
        told = dict(labels)
        assert all(text.isprintable() and len(text) < 300 for text in told.values())
        assert "training_job" in told or not metric.startswith("dynprof_job_")


def test_names_that_are_equal_once_escaped_are_given_once() -> None:
    """A directory named like the escaped name of another one does not spoil the whole scrape."""
    roles = [dataclasses.replace(EVERYTHING, role="x" * length) for length in (300, 400)]
    found = exposed(job(*roles, name="a\nb"), job(EVERYTHING, name="a\\nb"), per_rank=True)
    assert values(found, "job_info") == {"/runs/a": 1}


def test_strict_parser_of_openmetrics_takes_it() -> None:
    """Prometheus asks for this format first, and its parser checks more."""
    given: Any = Given(job(*ranks(2)))
    text = as_openmetrics(Collector(given, per_rank=True)).decode()  # type: ignore[no-untyped-call]
    families = parsed_strictly(text)  # type: ignore[no-untyped-call]
    assert len(list(families)) == len(METRICS)


def test_jobs_without_a_rank_or_directory_have_no_invented_numbers() -> None:
    """A config that no process watches has counts of zero, and neither steps nor times."""
    found = exposed(job())
    assert set(values(found, "job_ranks").values()) == {0}
    assert not values(found, "job_steps_total")
    assert not values(found, "job_last_step_timestamp_seconds")
    assert not values(found, "job_disk_free_bytes")  # /runs/a does not exist


def test_readings_at_the_same_time_read_once(tmp_path: Path) -> None:
    """Two servers of Prometheus that scrape at once cost one reading."""
    readings = Readings([tmp_path])
    assert readings.read() is readings.read()


def test_every_number_is_known_for_a_job_that_tells_all(tmp_path: Path) -> None:
    """No metric of the list is forgotten, or without a value whatever a job does."""
    points = measured(reading(with_capture(tmp_path)), per_rank=True)
    assert {metric for metric, found in points if found} == set(METRICS)

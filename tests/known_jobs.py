"""Jobs whose every number is known, for tests of what monitoring gets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.captures.manifest import load_manifest
from dynprof.fleet.jobs import Fleet, Job, Rank
from dynprof.fleet.metrics import Reading
from dynprof.journal.memory_growth import Growth, MemoryStatus
from dynprof.journal.pace_changes import PaceChange
from dynprof.journal.status import JobStatus, Status, WatchStatus
from tests.left_captures import FOLDER, left

if TYPE_CHECKING:
    from dynprof.captures.manifest import Manifest

NOW_S = 2_000_000_000.0
EVERYTHING = Status(
    "idle", 100, role="actor", host="node9", agreement="leads", heartbeat=NOW_S - 1,
    since_last_step_s=2.0, longest_s=7.0, step_ms=30.0, hour_ms=20.0, world_size=5,
    watch=WatchStatus(slow_steps=4),
    job=JobStatus(ranks=5, states={"idle": 4, "missing": 1}),
    memory=MemoryStatus(
        500, 300, 400, (Growth("resident", NOW_S - 600, 10, 100.0, 200.0, 600.0),), "the machine"
    ),
    pace_change=PaceChange(NOW_S - 100, 60, 20.0, 30.0),
)  # fmt: skip
"""The status of a live rank on another machine, with all that a status can have."""
COST = {"open_ms": 1.0, "close_ms": 2.0, "save_ms": 500.0, "extra_ms": 40.0}
OPENED_AT, CLOSED_AT = "2033-05-18T03:33:10.000+00:00", "2033-05-18T03:33:12.500+00:00"
"""Ten seconds before ``NOW_S``, and 2.5 s later."""


def job(*statuses: Status, name: str = "runs/a", **facts: Any) -> Job:
    """Return a job whose ranks have these statuses."""
    ranks = tuple(Rank(one, one.health(NOW_S)) for one in statuses)
    return Job(**{"directory": Path("/runs/a"), "name": name, "ranks": ranks, **facts})


def with_capture(place: Path, *statuses: Status, **told: object) -> Job:
    """Return a job in a directory, with a capture of rank 0 of its role.

    Args:
        place: The directory.
        statuses: The statuses of its ranks; without any, one with all that a status can have.
        told: Fields of the manifest to change.
    """
    folder = left(place, role="actor").rename(place / f"{FOLDER}_actor")
    (path,) = folder.glob("info/*.info.json")
    manifest: Manifest = load_manifest(path)
    times = {"opened_at": OPENED_AT, "closed_at": CLOSED_AT, "trace_bytes": 1234}
    cost = manifest.cost.model_copy(update=COST)
    manifest.model_copy(update={"cost": cost, **times, **told}).save(path)
    (place / "profiler_config.json").write_text("{}")
    (read,) = Fleet([place], lambda: NOW_S).read()
    found = job(*(statuses or (EVERYTHING,)), name=read.name)
    return Job(read.directory, read.name, found.ranks, read.captures, NOW_S)


def reading(*jobs: Job) -> Reading:
    """Return a reading of jobs."""
    return Reading(jobs, NOW_S, 0.5)

"""One reading of all jobs is shared by all browsers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dynprof.fleet.jobs import Fleet
from dynprof.fleet.snapshots import Snapshots
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import Status
from tests.status_files import write_status

if TYPE_CHECKING:
    from pathlib import Path


def test_answers_are_made_once_for_each_reading(tmp_path: Path) -> None:
    """A second browser gets the same bytes; the next reading has others."""
    write_status(tmp_path / "a" / "prof", Status("idle", 5, heartbeat=time.time()))
    snapshots = Snapshots(Fleet([tmp_path]))
    first = snapshots.read()
    assert snapshots.newest().listed is first.listed
    (name,) = first.jobs
    assert snapshots.full(name) is snapshots.full(name)
    write_status(tmp_path / "a" / "prof", Status("idle", 6, heartbeat=time.time()))
    before = snapshots.full(name)
    assert snapshots.read().number == first.number + 1
    assert snapshots.full(name) is not before
    assert snapshots.full("b/prof") is None


def test_equal_parts_of_the_statuses_of_ranks_are_kept_once(tmp_path: Path) -> None:
    """Each rank of 10,000 has the same requests."""
    edits = (Answer(1, "a" * 64, 1e9, "saved", "saved in 2 ms"),)
    for rank in range(2):
        write_status(tmp_path / "prof", Status("idle", rank=rank, host="node1", edits=edits))
    (job,) = Fleet([tmp_path]).read()
    one, other = (rank.status for rank in job.ranks)
    assert one.edits == edits
    assert one.edits is other.edits
    assert one.host is other.host

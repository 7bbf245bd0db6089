"""One reading of all jobs is shared by all browsers."""

from __future__ import annotations

import gc
import shutil
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.captures.manifest import load_manifest
from dynprof.fleet import live_log
from dynprof.fleet import snapshots as snapshots_module
from dynprof.fleet.jobs import Fleet
from dynprof.fleet.live_log import LiveLog
from dynprof.fleet.snapshots import Snapshots
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import Status
from tests.left_captures import left
from tests.status_files import write_status

if TYPE_CHECKING:
    from pathlib import Path

    from dynprof.fleet.jobs import Job


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


@pytest.mark.slow
def test_an_hour_of_readings_keeps_only_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks write, captures and logs come and go, a browser looks at all; the memory stays."""
    monkeypatch.setattr(live_log, "POLL_S", 0.0)
    now_s = [2e9]
    snapshots = Snapshots(Fleet([tmp_path], lambda: now_s[0]))
    log = LiveLog(tmp_path / "prof")
    (tmp_path / "prof" / "log").mkdir(parents=True)
    manifest = load_manifest(left(tmp_path / "elsewhere") / "info" / "rank_0.info.json")
    used = list[int]()
    tracemalloc.start()
    try:
        for reading in range(60):
            now_s[0] += 60.0
            for rank in range(3):
                status = Status("idle", reading, rank=rank, host="node9", heartbeat=now_s[0])
                write_status(tmp_path / "prof", status)
            folder = tmp_path / "prof" / f"step_{reading}-{reading}_20260101T000000Z"
            (folder / "info").mkdir(parents=True)
            manifest.save(folder / "info" / "rank_0.info.json")
            record = tmp_path / "prof" / "log" / f"dp_host_{reading}_rank_0.log"
            record.write_text(f"2026-01-31 03:00:00.123 INFO    rank 0  {reading}\n")
            (job,) = (one for one in snapshots.read().jobs.values() if one.name.endswith("prof"))
            assert snapshots.full(job.name)
            assert len(log.after(reading)) == 1
            assert [rank.status.step for rank in job.ranks] == [reading] * 3
            assert job.captures[0].folder == folder
            shutil.rmtree(folder)
            record.unlink()
            if reading % 10 == 9:
                gc.collect()
                used.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    # Other threads of this process allocate for a moment, too; what is kept is in each sample.
    assert min(used[-3:]) - max(used[:2]) < 100_000, used


class Gated:
    """Has no jobs, and reads them once; from then on each reading waits for the test."""

    def __init__(self) -> None:
        self.readings, self.is_waiting, self.may_read = 0, Event(), Event()

    def read(self) -> tuple[Job, ...]:
        """Read the jobs."""
        self.readings += 1
        if self.readings > 1:
            self.is_waiting.set()
            self.may_read.wait()
        return ()


def test_a_request_after_a_pause_waits_for_a_new_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not get what was read before the pause."""
    monkeypatch.setattr(snapshots_module, "IDLE_S", 0.0)
    fleet: Any = Gated()
    snapshots = Snapshots(fleet, every_s=0.0)
    snapshots.start()
    assert snapshots.newest().number == 1
    with ThreadPoolExecutor(100) as pool:
        try:
            while not fleet.is_waiting.wait(0.01):
                pool.submit(snapshots.newest)
            asked = pool.submit(snapshots.newest)
            assert not wait([asked], timeout=0.2).done
        finally:
            fleet.may_read.set()
        assert asked.result().number > 1
    snapshots.end()

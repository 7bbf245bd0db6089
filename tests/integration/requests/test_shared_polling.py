"""Several processes of one machine poll a directory: one reads it for all."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.integration.running import LOOP, RunningJob, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynprof.journal.status import Status

COUNTING = """
import os, sys, time, dynprof as dp
rank = os.environ["RANK"]
opened = 0
def count(event, arguments):
    global opened
    if event == "open" and str(arguments[0]).endswith("profiler_config.json"):
        opened += 1
sys.addaudithook(count)
found = open(f"opened.{rank}", "w")
def note():
    found.seek(0)
    found.write(f"{opened:9}")
    found.flush()
note()
dp.init("prof_config", watch="poll")
while True:
    time.sleep(0.01)
    dp.step()
    note()
"""
LOOKS = 10


def opened(folder: Path) -> list[int]:
    """Return how often each process has opened the config."""
    found = [(folder / f"opened.{rank}").read_text() for rank in range(3)]
    return [int(text) for text in found]


def readers(folder: Path) -> list[int]:
    """Wait until one process has read often; return all that have by then."""
    before = opened(folder)

    def often() -> list[int] | None:
        more = [now - then for now, then in zip(opened(folder), before, strict=True)]
        return more if max(more) >= LOOKS else None

    return [rank for rank, times in enumerate(wait_for("readings", often)) if times > LOOKS / 2]


def another_than(capture: str | None) -> Callable[[Status], bool]:
    """Return a check that a status names another capture."""
    return lambda status: status.last_capture != capture


def test_one_process_of_a_machine_reads_for_the_others(tmp_path: Path) -> None:
    """All processes see each save. If the reader is killed, another one takes over."""
    with ExitStack() as held:
        jobs = [
            held.enter_context(RunningJob(tmp_path, COUNTING, RANK=str(rank), WORLD_SIZE="3"))
            for rank in range(3)
        ]
        for rank, job in enumerate(jobs):
            job.when("training", lambda status: status.state == "idle", rank)
        (reader,) = readers(tmp_path)
        jobs[0].edit(active=2)
        first = [
            job.when("its capture", lambda status: bool(status.last_capture), rank).last_capture
            for rank, job in enumerate(jobs)
        ]
        jobs[reader].process.kill()
        left = [rank for rank in range(3) if rank != reader]
        jobs[0].edit(active=3)
        for rank in left:
            jobs[rank].when("a second", another_than(first[rank]), rank)
        (other,) = readers(tmp_path)
        assert other in left


def test_two_configs_that_were_one_file_are_watched_separately(tmp_path: Path) -> None:
    """The configs are first links to one file; an editor's save replaces a link by a file."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "profiler_config.json").write_text('{"active": 1}')
    script = LOOP.replace('"prof_config"', '"prof_config", follow_symlinks=True, watch="poll"')
    with ExitStack() as held:
        jobs = []
        for name in ("a", "b"):
            root = tmp_path / name / "prof_config"
            root.mkdir(parents=True)
            (root / "profiler_config.json").symlink_to(tmp_path / "shared/profiler_config.json")
            jobs.append(held.enter_context(RunningJob(tmp_path / name, script)))
            jobs[-1].when("training", lambda status: status.state == "idle")
        jobs[1].edit(active=2)
        jobs[1].when("its capture", lambda status: bool(status.last_capture))

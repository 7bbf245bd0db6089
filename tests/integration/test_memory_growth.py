"""The memory of real jobs: a leak, a limit of the process, and ``kill -9``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynprof.journal.history import load_history
from tests.integration.running import RunningJob, wait_for
from tests.processes import DYNPROF, run

if TYPE_CHECKING:
    from pathlib import Path

LEAK = """
import time, dynprof as dp
from dynprof.journal import memory_growth
memory_growth.MINUTE_S, memory_growth.LOOK_S = 2, 0.5  # a virtual minute
memory_growth._RULES = (memory_growth._Rule(1, 6.0, 10.0, float("inf")),)
dp.init("prof_config")
kept = []
while True:
    time.sleep(0.1)
    kept.append(bytearray(100_000))
    dp.step()
"""
"""A job that leaks a megabyte a second, in which a minute takes two seconds."""
LIMITED = """
import resource, time, dynprof as dp
dp.init("prof_config")
vms = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (vms + 200_000_000, resource.RLIM_INFINITY))
kept = []
while True:
    time.sleep(0.05)
    if len(kept) < 170:
        kept.append(bytearray(1_000_000))
    dp.step()
"""
"""A job that uses nearly all of the memory that its own limit leaves."""


def line_of(job: RunningJob, text: str) -> str:
    """Wait for the only line of the log with a text."""

    def found() -> str | None:
        lines = [line for line in job.log().splitlines() if text in line]
        assert len(lines) <= 1
        return lines[0] if lines else None

    return wait_for(f"a line with {text}", found)


def written(job: RunningJob) -> dict[str, Any]:
    """Return the file that a rank has written about its memory."""
    (path,) = job.root.glob("log/*.memory")

    def complete() -> dict[str, Any] | None:
        content: dict[str, Any] = json.loads(path.read_text())
        return content if "python_allocations" in content else None

    return wait_for("the whole file", complete)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_leak_is_named_with_its_line_and_survives_a_kill(tmp_path: Path) -> None:
    """Log, status and history name rate and onset; tracing of the script names the line."""
    with RunningJob(tmp_path, LEAK, PYTHONTRACEMALLOC="1") as job:
        text = line_of(job, "resident memory grows by ")
        assert " MB an hour since " in text
        assert "; more is in log/dp_" in text
        assert "job.py:10" in written(job)["python_allocations"][0]
        path = job.root / "status" / "rank_0.history"
        wait_for("the growth in the file", lambda: load_history(path).growths or None)
        shown = run([*DYNPROF, "status", "prof_config"], cwd=tmp_path).stdout
        assert "rank 0: resident memory grows by " in shown
        job.process.kill()
        job.process.wait()
        readings = load_history(path).memory()
        assert readings[-1].resident_mb > readings[0].resident_mb + 5
        shown = run([*DYNPROF, "history", "prof_config"], cwd=tmp_path).stdout
        assert "rank 0: resident memory grows by " in shown


@pytest.mark.timeout(300)
def test_limit_of_the_process_is_named_before_it_is_reached(tmp_path: Path) -> None:
    """The job continues: what dynprof writes fits into what is left."""
    with RunningJob(tmp_path, LIMITED) as job:
        text = line_of(job, "memory is low: the process's RLIMIT_AS has ")
        assert "; more is in log/dp_" in text
        names = [limit["name"] for limit in written(job)["limits"]]
        assert "the process's RLIMIT_AS" in names
        before = job.when("steps", lambda status: status.step > 0).step
        job.when("further steps", lambda status: status.step > before)
        assert "RLIMIT_AS" in job.when("the status", lambda s: bool(s.memory.low)).memory.low

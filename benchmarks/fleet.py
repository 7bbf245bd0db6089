"""Measure the reading of many jobs for monitoring: ``fleet.py [JOBS] [RANKS]``.

There are jobs of two ranks with some captures, and a job of many ranks. Their processes seem to be
on other machines: only their files exist. Before each later reading every rank has written its
status again, as it does every five seconds. Each measurement runs in a process of its own, whose
memory is that of ``dynprof metrics``.
"""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tables import print_table
from dynprof.captures.manifest import Cost, Manifest, RequestRecord, Steps
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.pace_changes import RecentPace
from dynprof.journal.status import Status
from dynprof.requests.capabilities import Capabilities
from dynprof.runtime.layout import CONFIG_NAME, INFO_DIR, STATUS_DIR

A_JOB, A_MACHINE, CAPTURES, READINGS = 2, 8, 5, 3
HEAD = ("jobs", "ranks", "--per-rank", "values", "first", "later", "nothing new", "memory")


def main() -> None:
    """Measure and print."""
    jobs, ranks = map(int, sys.argv[1:] or ("1000", "10000"))
    rows = []
    for count, size in ((jobs, A_JOB), (1, ranks)):
        for per_rank in (False, True):
            with tempfile.TemporaryDirectory() as name:
                for number in range(count):
                    write_captures(Path(name) / f"job{number}")
                code = (
                    f"from benchmarks.fleet import *; measure(Path({name!r}), {size}, {per_rank})"
                )
                done = subprocess.run(
                    [sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True
                )
            shown = (f"{count:,}", f"{count * size:,}", "yes" if per_rank else "no")
            rows.append((*shown, *json.loads(done.stdout)))
    print_table("Numbers of many jobs", HEAD, rows)


def measure(place: Path, ranks: int, per_rank: bool) -> None:
    """Print the number of values, the seconds of some readings, and the memory."""
    from dynprof.fleet.metrics import FRESH_S, Collector, Readings

    collector = Collector(Readings([place]), per_rank=per_rank)
    took_s, text = [], b""
    for number in range(READINGS + 1):
        if number < READINGS:
            for directory in place.iterdir():
                write_statuses(directory, ranks, number)
        time.sleep(FRESH_S)
        began_s = time.perf_counter()
        text = collector.exposition()
        took_s.append(time.perf_counter() - began_s)
    values = sum(line[:1] != b"#" for line in text.splitlines())
    times_s = took_s[0], max(took_s[1:READINGS]), took_s[READINGS]
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
    print(json.dumps([f"{values:,}", *(f"{s:.2f} s" for s in times_s), f"{memory_mb:.0f} MB"]))


def write_statuses(directory: Path, ranks: int, number: int) -> None:
    """Write the status of each rank, with its last edits and the pace of an hour."""
    (directory / STATUS_DIR).mkdir(parents=True, exist_ok=True)
    now_s = time.time()
    name = "step_1/info/x.json"
    status = Status(
        "idle", 1000 + number, "dp.step()", world_size=ranks, pid=7, heartbeat=now_s,
        longest_s=1.0, step_ms=12.5, hour_ms=12.5,
        edits=tuple(Answer(n, "0" * 64, now_s, "saved", "saved", name) for n in range(20)),
        recent_pace=RecentPace(1.0, 2.0, (12.5,) * 24),
        recent_steps=tuple((now_s - n, 1000 - n) for n in range(15)),
        profilers=(Capabilities("torch", ("CPU",)), Capabilities("python", ("CPU",))),
    )  # fmt: skip
    told = dataclasses.asdict(status)
    for rank in range(ranks):
        told |= {"rank": rank, "host": f"node{rank // A_MACHINE:04}"}
        path = directory / STATUS_DIR / f"rank_{rank}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(told, indent=2))
        new.replace(path)


def write_captures(directory: Path) -> None:
    """Write the manifests of some windows, and a config."""
    directory.mkdir()
    (directory / CONFIG_NAME).touch()
    config = {"activities": ["CPU"], "active": 5, "warmup": 1, "record_shapes": True}
    at = "2026-01-01T00:00:00.000+00:00"
    manifest = Manifest(
        dynprof="0", backend="torch", versions={"torch": "2.13.0"}, host="node0000", pid=7, rank=0,
        world_size=A_JOB, steps=Steps(first=1, last=5, recorded=5, warmup=1), activities=("CPU",),
        request=RequestRecord(number=1, edited_at=at, sha256="0" * 64, config={**config}),
        opened_at=at, closed_at=at, complete=True, trace="host_7.rank0.1.pt.trace.json.gz",
        cost=Cost(open_ms=1.0, close_ms=0.1, save_ms=90.0),
    )  # fmt: skip
    for number in range(CAPTURES):
        info = directory / f"step_1-5_2026010{number + 1}T000000Z" / INFO_DIR
        info.mkdir(parents=True)
        manifest.save(info / "rank_0.info.json")


if __name__ == "__main__":
    main()

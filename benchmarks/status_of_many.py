"""``dynprof status`` of a shared directory with the status files of many ranks.

Beside it what the command takes where there is one rank: an interpreter, and its imports.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tables import print_table
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import Status

RANKS = (1, 100, 1000)
ROUNDS = 7


def write(root: Path, count: int) -> None:
    """Write the status files of so many ranks, each with its last 20 edits."""
    folder = root / "status"
    folder.mkdir(parents=True)
    for rank in range(count):
        edits = tuple(
            Answer(n, "0" * 64, time.time(), "saved", "saved in 3.1 ms", f"step_{n}/info/x.json")
            for n in range(20)
        )
        host, pid = f"node-{rank // 8}", 1000 + rank
        status = Status(
            "idle", 1000, "dp.step()", rank, count, host, pid, edits=edits, heartbeat=time.time()
        )
        (folder / f"rank_{rank}.json").write_text(json.dumps(dataclasses.asdict(status)))


def measure(count: int) -> float:
    """Return the median time of the command, in seconds."""
    took = []
    command = [sys.executable, "-m", "dynprof", "status"]
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:  # their heartbeats are of now
            write(Path(folder) / "prof_config", count)
            began_s = time.perf_counter()
            done = subprocess.run(
                [*command, f"{folder}/prof_config"], check=True, capture_output=True
            )
            took.append(time.perf_counter() - began_s)
            assert b"node-0" in done.stdout or b"more ranks, idle" in done.stdout
    return statistics.median(took)


def main() -> None:
    """Measure and print."""
    rows = [(f"{count:,}", f"{measure(count):.2f} s") for count in RANKS]
    print_table(f"dynprof status, medians of {ROUNDS}", ("ranks", "the whole command"), rows)


if __name__ == "__main__":
    main()

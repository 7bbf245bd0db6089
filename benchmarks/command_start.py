"""Measure commands from the shell's call to their end, next to an idle interpreter.

The job's first eight ranks run on this machine, and ``status`` looks for their processes. The
others pretend to be on other machines: only their status files exist. ``command_start.py [TIMES]``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.tables import print_table
from dynprof.journal.edit_outcomes import Answer
from dynprof.journal.status import Status
from dynprof.requests.capabilities import Capabilities
from dynprof.runtime.layout import LOG_DIR, STATUS_DIR, host_name, pid_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator

TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 9
A_MACHINE = 8
RANKS = (A_MACHINE, 1000)
DYNPROF = [str(Path(sys.executable).with_name("dynprof"))]
PYTHON = [sys.executable, "-c"]


@contextlib.contextmanager
def processes(count: int) -> Iterator[list[int]]:
    """Run processes that do nothing; yield their ids."""
    running = [subprocess.Popen(["sleep", "3600"]) for _ in range(count)]
    try:
        yield [one.pid for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()


def write(root: Path, count: int, pids: list[int]) -> None:
    """Write the status file of each rank, with its last 20 edits, and the first rank's log."""
    (root / STATUS_DIR).mkdir(parents=True, exist_ok=True)
    now_s = time.time()
    for rank in range(count):
        edits = tuple(
            Answer(n, "0" * 64, now_s, "saved", "saved in 3.1 ms", f"step_{n}/info/x.json")
            for n in range(20)
        )
        here = rank < A_MACHINE
        status = Status(
            "idle", 1000, "dp.step()", rank, count, heartbeat=now_s, step_ms=12.5, edits=edits,
            host=host_name() if here else f"node-{rank // A_MACHINE}",
            pid=pids[rank] if here else 1000 + rank,
            pid_namespace=pid_namespace() if here else "pid:[1]",
            profilers=(Capabilities("torch", ("CPU",)),),
        )  # fmt: skip
        text = json.dumps(dataclasses.asdict(status))
        (root / STATUS_DIR / f"rank_{rank}.json").write_text(text)
    (root / LOG_DIR).mkdir(exist_ok=True)
    line = "2026-01-01 00:00:00.000 INFO rank 0 a line of the log\n"
    (root / LOG_DIR / f"dp_{host_name()}_{pids[0]}_rank_0.log").write_text(line * 100)


def ways(roots: dict[int, Path]) -> dict[str, list[str]]:
    """Return the commands by name; tools that are not installed are left out."""
    found = {
        "python -c pass": [*PYTHON, "pass"],
        "python -c 'import typer'": [*PYTHON, "import typer"],
    }
    if py_spy := shutil.which("py-spy") or shutil.which(
        "py-spy", path=str(Path(sys.executable).parent)
    ):
        found["py-spy --version"] = [py_spy, "--version"]
    found |= {f"dynprof {option}": [*DYNPROF, option] for option in ("--version", "--help")}
    for count, root in roots.items():
        found[f"dynprof status, {count:,} ranks"] = [*DYNPROF, "status", str(root)]
    directory = str(roots[A_MACHINE])
    for name in ("log", "validate", "arm", "cancel"):
        found[f"dynprof {name}, {A_MACHINE} ranks"] = [*DYNPROF, name, directory]
    return found


def measure(command: list[str]) -> tuple[float, float]:
    """Return the seconds of a command: elapsed time and CPU time."""
    began_s, before_s = time.perf_counter(), _processor_s()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began_s, _processor_s() - before_s


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder, processes(A_MACHINE) as pids:
        roots = {count: Path(folder, str(count)) for count in RANKS}
        for root in roots.values():
            subprocess.run([*DYNPROF, "init", str(root)], check=True, capture_output=True)
        took: dict[str, list[tuple[float, float]]] = {}
        for _ in range(TIMES):
            for count, root in roots.items():  # now, because heartbeats must be recent
                write(root, count, pids)
            for name, command in ways(roots).items():
                took.setdefault(name, []).append(measure(command))
    rows = [
        (name, *(f"{min(seconds) * 1e3:.0f} ms" for seconds in zip(*times, strict=True)))
        for name, times in took.items()
    ]
    head = ("command", "time", "CPU time")
    print_table(f"A command, the best of {TIMES}, by turns", head, rows)


if __name__ == "__main__":
    main()

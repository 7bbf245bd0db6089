"""Measure how long dynprof takes to attach to a process, and how long its loop pauses.

The other tools are ``py-spy dump``, which only reads, and ``memray attach`` and ``hypno``, which
load a library. Each has its own job: a loop that notes its longest round. Tools that are not
installed are left out. ``attaching.py [TIMES]``.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tables import print_table

TIMES = int(sys.argv[1]) if len(sys.argv) > 1 else 5
JOB = """
import os, time
longest = 0.0
last = time.perf_counter()
def work():
    return sum(range(2000))
while True:
    work()
    now = time.perf_counter()
    if now - last > longest and os.path.exists("begin"):
        longest = now - last
        with open("longest.part", "w") as file:
            file.write(str(longest))
        os.rename("longest.part", "longest")
        now = time.perf_counter()
    last = now
"""
SELF = [sys.executable, "-m", "dynprof"]
HYPNO = [sys.executable, "-m", "hypno", "{pid}", "1"]


def ways() -> dict[str, list[str]]:
    """Return the commands of the installed tools; {pid} is the place of the process id."""
    found = {
        "nothing, for a second": ["sleep", "1"],
        "dynprof attach": [*SELF, "attach", "{pid}", "--step-on", ":work"],
    }
    if py_spy := _tool("py-spy"):
        found["py-spy dump"] = [py_spy, "dump", "--pid", "{pid}"]
    if (memray := _tool("memray")) and (shutil.which("gdb") or shutil.which("lldb")):
        found["memray attach"] = [memray, "attach", "-o", "memray.bin", "{pid}"]
    if subprocess.run([sys.executable, "-c", "import hypno"], capture_output=True).returncode == 0:
        found["hypno"] = HYPNO
    return found


def _tool(name: str) -> str | None:
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def measured(command: list[str]) -> tuple[float, float]:
    """Return a command's duration in s, and the job's longest round during it in ms."""
    with tempfile.TemporaryDirectory() as folder:
        job = subprocess.Popen([sys.executable, "-c", JOB], cwd=folder)
        try:
            time.sleep(0.5)
            Path(folder, "begin").touch()
            began_s = time.perf_counter()
            called = [word.replace("{pid}", str(job.pid)) for word in command]
            subprocess.run(called, cwd=folder, capture_output=True, check=True)
            took_s = time.perf_counter() - began_s
            time.sleep(0.5)
            return took_s, float(Path(folder, "longest").read_text()) * 1e3
        finally:
            job.kill()
            job.wait()


def main() -> None:
    """Measure and print."""
    rows = []
    for name, command in ways().items():
        took, held = zip(*[measured(command) for _ in range(TIMES)], strict=True)
        shown = (f"{statistics.median(took):.2f} s", f"{statistics.median(held):.1f} ms")
        rows.append((name, *shown, f"{max(held):.1f} ms"))
    head = ("what", "from the command to its end", "the loop's longest round", "worst")
    print_table(f"Reaching a running process, medians of {TIMES}", head, rows)


if __name__ == "__main__":
    main()

"""Measure ``import dynprof`` and ``dp.init()``, and list the most expensive imports."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.tables import print_table
from dynprof.launch.environment import LINE

IMPORT = "import time; t = time.perf_counter(); import {name}; print(time.perf_counter() - t)"
INIT = """
import sys, time, dynprof as dp
t = time.perf_counter(); dp.init(sys.argv[1]); print(time.perf_counter() - t)
"""

PTH = """
import site, sys, time
t = time.perf_counter(); site.addpackage(sys.argv[1], sys.argv[2], set())
print(time.perf_counter() - t)
"""


def milliseconds(code: str, *arguments: str) -> float:
    """Return the best of seven new interpreters."""
    times = []
    for _ in range(7):
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        times.append(float(done.stdout) * 1e3)
    return min(times)


def dominant(most: int) -> list[tuple[str, float]]:
    """Return the imports of ``dp.init()`` with the longest self time, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        code = f"import dynprof; dynprof.init({folder!r})"
        command = [sys.executable, "-X", "importtime", "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    totals: dict[str, float] = {}
    for line in done.stderr.splitlines():
        if "|" in line and "self [us]" not in line:
            self_us, _, name = line.removeprefix("import time:").split("|")
            package = name.strip().split(".")[0]
            totals[package] = totals.get(package, 0) + int(self_us) / 1e3
    return sorted(totals.items(), key=lambda item: -item[1])[:most]


def pth_line() -> float:
    """Return the time of the line that ``dynprof env --install`` adds, without its variable."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "empty.pth").touch()
        Path(folder, "line.pth").write_text(LINE)
        return milliseconds(PTH, folder, "line.pth") - milliseconds(PTH, folder, "empty.pth")


def main() -> None:
    """Measure and print."""
    rows = [
        (f"import {name}", f"{milliseconds(IMPORT.format(name=name)):.1f} ms")
        for name in ("dynprof", "dataclasses", "pydantic", "jsonschema", "watchdog.observers")
    ]
    with tempfile.TemporaryDirectory() as folder:
        rows.append(("dp.init(), its imports included", f"{milliseconds(INIT, folder):.1f} ms"))
    rows += [(f"- thereof {name}", f"{ms:.1f} ms") for name, ms in dominant(6)]
    rows.append(("the line of dynprof env, without its variable", f"{pth_line():.3f} ms"))
    print_table("Importing", ("what", "time"), rows)


if __name__ == "__main__":
    main()

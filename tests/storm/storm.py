"""One storm after the other: ``storm.py [SECONDS [FIRST_SEED]]`` prints a line for each.

Each storm is its own job (``tests.storm.job``). Half of them have a malloc that returns freed
memory at once. The other half has one that overwrites freed memory. The exit code is 1 if a storm
fails; its seed and folder are printed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from dynprof.captures.manifest import load_manifest
from dynprof.errors import CaptureError
from tests import processes

ROUND_S = 20.0
MOST_S = 900.0
"""Timeout of a job in s. Its rest and its last save take minutes."""
TUNABLES = (
    {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=2000:glibc.malloc.mmap_max=200000"},
    {"MALLOC_PERTURB_": "165"},
)


def storm(seed: int, seconds: float, folder: Path) -> str:
    """Run a storm; return the error, or nothing."""
    env = {
        **os.environ,
        **TUNABLES[seed % 2],
        "DYNPROF_CLOSE": ("detached", "inline")[seed % 4 > 2],
        "PYTHONPATH": str(processes.ROOT),
    }
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.storm.job"]
    command += [str(seed), str(seconds)]
    with processes.start(command, cwd=folder, env=env) as job:
        try:
            output, errors = job.communicate(timeout=MOST_S)
        except subprocess.TimeoutExpired:
            return f"seed {seed} hangs: {where_it_hangs(job)}"
    if job.returncode == 0:
        told = json.loads(output.splitlines()[-1])
        memory = f"memory grew by {told['grown_mb']:,.0f} MB"
        print(f"seed {seed}: {told['trained']:,} steps, {outcomes(folder)}, {memory}", flush=True)
        if stuck := told["done"].get("stuck"):
            print(f"{stuck} of its children hung in plain torch: {errors[-4000:]}", flush=True)
        return ""
    (folder / "output.txt").write_text(output)
    (folder / "errors.txt").write_text(errors)
    return f"seed {seed} ended with {job.returncode}: {output[-2000:]}{_both_ends(errors)}"


def _both_ends(errors: str) -> str:
    """Return the start, which shows a crash, and the end, which shows an exception."""
    return errors if len(errors) <= 8000 else f"{errors[:4000]}\n...\n{errors[-4000:]}"


def where_it_hangs(job: processes.Process) -> str:
    """Make the job and its children print their stacks; end them."""
    for process in processes.family(job.mark):
        process.send_signal(signal.SIGUSR2)
        time.sleep(1.0)
    processes.end_family(job.mark)
    return job.communicate()[1][-20_000:]


def outcomes(folder: Path) -> str:
    """Summarise the results of its windows."""
    found: Counter[str] = Counter()
    for path in (folder / "prof_config").rglob("*.info.json"):
        found[kind(path)] += 1
    return ", ".join(f"{count} {kind}" for kind, count in sorted(found.items()))


def kind(path: Path) -> str:
    """Return the kind of a manifest as one word."""
    try:
        manifest = load_manifest(path)
    except CaptureError:
        return "torn"
    return "whole" if manifest.complete else "cut" if manifest.trace else "lost"


def main() -> int:
    """Run storms until the time is over or one fails."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time())
    over_s = time.monotonic() + seconds
    while time.monotonic() < over_s:
        folder = Path(tempfile.mkdtemp(prefix=f"dynprof-storm-{seed}-"))
        if wrong := storm(seed, ROUND_S, folder):
            print(f"{wrong}\nit left {folder}")
            return 1
        shutil.rmtree(folder)
        seed += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

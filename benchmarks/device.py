"""Compare both ways of closing a window on a device: the kernels and the costs.

``device.py [cuda|xpu]`` records the same seeded steps with the inline and with the detached close.
It compares the events by category and the kernels by name. It captures graphs during windows and
sets marks on streams. It opens windows of all kinds while a device is busy. Then it prints the
tables of ``closing.py`` for the device. All this takes about ten minutes.

The exit code is 1 if the captures differ, a graph breaks, a mark is misplaced, a window is missing,
or there is no device. ``device.py cpu`` tests the script itself.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
WAYS = ("inline", "detached")
STEPS = 20
TESTS = (
    "tests/integration/windows/test_graph_captures.py",
    "tests/integration/backends/test_device_marks.py",
)

JOB = f"""
import json, pathlib, time, torch
import dynprof as dp
from benchmarks import closing
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
dp.init("prof_config")
while SELF_TEST.answer is None:
    time.sleep(0.01)
step = closing.training("encoder")
asked = pathlib.Path("asked.json")
for settings in ({{}}, {{"record_shapes": True, "profile_memory": True}}):
    for _ in range(3):
        step()
    closing.dynprof_window(step, {STEPS}, ".", settings)
"""


def captured(way: str, folder: str) -> list[dict[str, Any]]:
    """Record in a new process that closes one way; return the traces, the oldest first."""
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "DYNPROF_CLOSE": way, "PYTHONPATH": path}
    script = f"import sys; sys.argv[1:] = ['1', {DEVICE!r}]\n{JOB}"
    subprocess.run([sys.executable, "-c", script], cwd=folder, env=env, check=True)
    paths = sorted(Path(folder).rglob("*.pt.trace.json.gz"), key=lambda p: p.stat().st_mtime_ns)
    return [json.loads(gzip.decompress(path.read_bytes())) for path in paths]


def counts(trace: dict[str, Any]) -> Counter[str]:
    """Count events by category; count those of the device also by name."""
    found: Counter[str] = Counter()
    for event in trace["traceEvents"]:
        category = str(event.get("cat"))
        if event["ph"] != "M":
            found[category] += 1
        if category in ("kernel", "gpu_memcpy", "gpu_memset"):
            found[f"{category}: {event['name']}"] += 1
    return found


def differences() -> list[str]:
    """Return the differences between the recordings of both ways."""
    found = {}
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            found[way] = list(map(counts, captured(way, folder)))
    for number, inline in enumerate(found["inline"]):
        print(f"capture {number}: {inline.total():,} counts, {inline['kernel']:,} kernels")
    return [
        f"capture {number}, {name}: {inline[name]} inline, {detached[name]} detached"
        for number, (inline, detached) in enumerate(zip(*found.values(), strict=True))
        for name in sorted(inline | detached)
        if inline[name] != detached[name]
    ]


def main() -> int:
    """Compare, then measure."""
    import torch

    if DEVICE != "cpu" and not getattr(torch, DEVICE).is_available():
        print(f"torch {torch.__version__} sees no {DEVICE} device here.")
        return 1
    if found := differences():
        print("The two ways differ:", *found, sep="\n  ")
        return 1
    print("Both ways recorded the same.\n")
    if DEVICE == "cpu":
        return 0
    checks = (
        ["-m", "pytest", "-q", *TESTS],
        ["-m", "tests.soak.device", "60", DEVICE],
        ["-m", "benchmarks.closing", "3", DEVICE, "encoder"],
    )
    failed = [c for c in checks if subprocess.run([sys.executable, *c], check=False).returncode]
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

"""Measure the cost of an event in a torch window, and how well dynprof estimates a save.

Each job runs with each setting in its own process. A small window loads the libraries; the next
window is measured. *Events* is the number in the trace, and *told* is the estimate that the limits
use. ``events.py JOB SETTINGS`` measures one.
"""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import dynprof as dp
from benchmarks.tables import print_table
from dynprof.backends.base import Load
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.backends.torch.torch_recording import RecordedEvents
from dynprof.runtime.memory import in_use_mb, resident_mb

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[], None]

STEPS = {"encoder": 30, "operators": 60, "collate": 10, "calls": 20, "encoder and collate": 10}
SETTINGS = {
    "plain": {},
    "shapes": {"record_shapes": True},
    "memory": {"profile_memory": True},
    "stacks": {"with_stack": True},
    "all": {"record_shapes": True, "profile_memory": True, "with_stack": True},
}
HEAD = (
    "job",
    "recorded",
    "events",
    "told",
    "recording, B",
    "saving, B",
    "told, B",
    "us",
    "trace, B",
)


def encoder() -> Step:
    """Return a training step of operators."""
    layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(8, 16, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def operators() -> Step:
    """Return a step that only calls operators."""

    def step() -> None:
        for _ in range(300):
            torch.ones(3).relu()

    return step


class Rows(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Rows of numbers."""

    def __len__(self) -> int:
        """Return more rows than are used."""
        return 10**9

    def __getitem__(self, index: int) -> list[int]:
        """Return a row."""
        return list(range(index % 7, index % 7 + 200))


def _add(total: int, value: int) -> int:
    return abs(total) + value


def _collate(rows: list[list[int]]) -> torch.Tensor:
    sums = []
    for row in rows:
        total = 0
        for value in row:
            total = _add(total, value)
        sums.append(total)
    return torch.tensor(sums, dtype=torch.float32).reshape(-1, 1).expand(-1, 64).clone() / 1e5


def collate() -> Step:
    """Return a training step whose collation takes 13,000 Python calls."""
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batches = iter(torch.utils.data.DataLoader(Rows(), batch_size=32, collate_fn=_collate))

    def step() -> None:
        optimizer.zero_grad()
        model(next(batches)).square().mean().backward()
        optimizer.step()

    return step


def calls() -> Step:
    """Return a step of Python calls only."""
    values, found = list(range(5_000)), dict[int, int]()

    def step() -> None:
        for value in values:
            found.get(value)

    return step


def both() -> Step:
    """Return a step of operators and Python calls."""
    first, second = encoder(), collate()

    def step() -> None:
        first()
        second()

    return step


JOBS = {
    "encoder": encoder,
    "operators": operators,
    "collate": collate,
    "calls": calls,
    "encoder and collate": both,
}


def most_resident_mb() -> float:
    """Return the peak resident memory in MB since its last reset."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024 / 1e6 if found else 0.0


def measure(job: str, recorded: str) -> tuple[str, ...]:
    """Return the row of a job with some settings."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    step, told = JOBS[job](), list[Load]()
    load_of = RecordedEvents.load

    def noted(self: RecordedEvents, *, inside_step: bool) -> Load | None:
        load = load_of(self, inside_step=inside_step)
        told.append(load or Load())
        return load

    RecordedEvents.load = noted  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        dp.init(folder)
        while SELF_TEST.answer is None:
            time.sleep(0.05)
        for _ in range(3):
            step()
        window(folder, step, 2, recorded)
        grown_mb, took_mb, took_s = window(folder, step, STEPS[job], recorded)
        trace = max(Path(folder).rglob("*.gz"), key=lambda path: path.stat().st_mtime)
        size = trace.stat().st_size
        count = len(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])
        dp.shutdown()
    each = (grown_mb * 1e6, took_mb * 1e6, told[-1].saving_mb * 1e6, took_s * 1e6, size)
    figures = [f"{value / count:,.0f}" for value in each]
    return job, recorded, f"{count:,}", f"{told[-1].events / count:.2f}", *figures


def window(folder: str, step: Step, count: int, recorded: str) -> tuple[float, float, float]:
    """Record a window; return its growth, its saving time, and its CPU time."""
    asked = Path(folder) / "asked.json"
    settings = {"activities": ["CPU"], "active": count, **SETTINGS[recorded]}
    limits = {"max_memory_mb": None, "max_events": 0}
    asked.write_text(json.dumps({**settings, "limits": limits}))
    saved, grown_mb = dp.status().last_capture, 0.0
    dp.start(asked)
    before_mb = in_use_mb() or 0.0
    for _ in range(count):
        step()
        grown_mb = (in_use_mb() or 0.0) - before_mb
        dp.step()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to the current value
    resident, began_s = resident_mb(), time.process_time()
    while dp.status().last_capture == saved:
        time.sleep(0.01)
    return grown_mb, most_resident_mb() - resident, time.process_time() - began_s


def main() -> None:
    """Measure all jobs, or one."""
    if len(sys.argv) > 2:
        print(json.dumps(measure(*sys.argv[1:])))
        return
    rows = []
    for job in JOBS:
        for recorded in SETTINGS:
            command = [sys.executable, "-m", "benchmarks.events", job, recorded]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append(tuple(json.loads(done.stdout.splitlines()[-1])))
    print_table("Events, and what one takes", HEAD, rows)


if __name__ == "__main__":
    main()

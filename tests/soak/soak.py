"""A job with a step every ms and an edit every second, for ten minutes, with everything on.

The watch for slow steps is on, and some steps are slow. Some edits ask for baselines, or for
the tables of a capture.

``soak.py [SECONDS]`` prints a table of memory, descriptors and threads, and the result of every
request. The exit code is 1 if a result is missing or something grew.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.integration.running import TORCH_JOB, RunningJob

JOB = (
    TORCH_JOB
    + """
import itertools, os
from dynprof.runtime.memory import in_use_mb
dp.init("prof_config", on_event=["true"])
for number in itertools.count():
    if os.path.exists("end"):
        break
    if number % 5000 == 0:
        open("in_use_mb", "w").write(str(in_use_mb()))
    train_one_step()
    time.sleep(0.05 if number % 1000 == 999 else 0.001)
    dp.step()
"""
)
WATCH = {"slower_than": 1.5, "max_per_hour": 1000, "then": {"active": 2}}
EDIT_S = 1.0
ROWS = 10
WARM = 3
"""The number of warm-up rows. Nothing may grow afterwards."""
MOST_MB, MOST_FREE_MB, MOST_DESCRIPTORS = 5.0, 150.0, 2
"""Growth of allocated memory and of resident memory, and more descriptors, that are allowed.

Freed memory stays with the allocator: resident memory grows in jumps while large windows overlap.
"""

_ACCEPTED = re.compile(r"request (\d+): accepted")
_ENDED = re.compile(r"request (\d+): (saved|superseded|cancelled|not served|no trace|refused)")


@dataclass(frozen=True)
class Sample:
    """The job's resources at one moment."""

    seconds: float
    step: int
    memory_mb: float
    allocated_mb: float
    descriptors: int
    threads: int


def edits(chance: random.Random, step: int) -> Any:
    """Yield the operator's next configs, valid or not."""
    window = {
        "active": chance.randint(1, 30),
        "warmup": chance.choice([0, 0, 2]),
        "record_shapes": chance.random() < 0.3,
        "profile_memory": chance.random() < 0.2,
        "with_stack": chance.random() < 0.3,
        "activities": ["CPU"],
    }
    return chance.choice(
        [
            window,
            window,
            window,
            {**window, "start_step": step + chance.randint(1, 3000)},
            {**window, "start_step": max(1, step - 5)},
            {**window, "active": -1},
            {**window, "ranks": [7]},
            {"active": 5, "every": {"steps": 1000}, "keep": 3},
            {**window, "analyse": True},
            {"actve": 3},
            {"cancel": True},
            "half a fi",
        ]
    )


def run(seconds: float, folder: Path) -> tuple[list[Sample], str, Counter[str]]:
    """Run the job with the operator; return samples, log, and the number of edits by kind."""
    chance, samples = random.Random(1), []  # noqa: S311 - the same edits every time
    kinds: Counter[str] = Counter()
    with RunningJob(folder, JOB, OMP_NUM_THREADS="1") as job:
        job.when("training", lambda status: status.state == "idle")
        process, began_s = psutil.Process(job.process.pid), time.monotonic()
        every_s, sampled_s = seconds / ROWS, 0.0
        while (now_s := time.monotonic() - began_s) < seconds:
            status = job.status()
            step = status.step if status else 0
            edit = edits(chance, step)
            kinds["broken" if isinstance(edit, str) else "edits"] += 1
            text = edit if isinstance(edit, str) else json.dumps({**edit, "watch": WATCH})
            job.config.write_text(text)
            if now_s >= sampled_s + every_s:
                sampled_s = now_s
                allocated_mb = float((folder / "in_use_mb").read_text() or 0)
                samples.append(sample(process, now_s, step, allocated_mb))
                _tell(samples[-1])
            time.sleep(EDIT_S)
        job.config.write_text('{"cancel": true}')
        job.when("rest", lambda status: status.state == "idle")
        (folder / "end").touch()
        job.end()
        logs = sorted(job.root.glob("log/*"), reverse=True)
        return samples, "".join(path.read_text() for path in logs), kinds


def sample(process: psutil.Process, seconds: float, step: int, allocated_mb: float) -> Sample:
    """Measure the job."""
    memory_mb = process.memory_info().rss / 1e6
    return Sample(seconds, step, memory_mb, allocated_mb, process.num_fds(), process.num_threads())


def verdict(samples: list[Sample], log: str) -> list[str]:
    """Return the errors."""
    wrong = []
    accepted = set(_ACCEPTED.findall(log))
    if lost := sorted(accepted - {number for number, _ in _ENDED.findall(log)}, key=int):
        wrong.append(f"requests that were accepted and never heard of again: {', '.join(lost)}")
    first, last = samples[WARM], samples[-1]
    if last.allocated_mb - first.allocated_mb > MOST_MB:
        wrong.append(f"allocated {first.allocated_mb:.0f} MB, then {last.allocated_mb:.0f} MB")
    if last.memory_mb - first.memory_mb > MOST_FREE_MB:
        wrong.append(f"memory grew from {first.memory_mb:.0f} to {last.memory_mb:.0f} MB")
    if last.descriptors - first.descriptors > MOST_DESCRIPTORS:
        wrong.append(f"descriptors grew from {first.descriptors} to {last.descriptors}")
    if "Traceback" in log:
        wrong.append("there is a traceback in the log")
    return wrong


def _tell(found: Sample) -> None:
    print(
        f"{found.seconds:8.0f} s  step {found.step:8,}  {found.memory_mb:7.1f} MB  "
        f"{found.allocated_mb:6.1f} MB allocated  "
        f"{found.descriptors:3} descriptors  {found.threads:3} threads",
        flush=True,
    )


def main() -> int:
    """Run, print, and return an exit code."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 600.0
    with tempfile.TemporaryDirectory() as folder:
        samples, log, kinds = run(seconds, Path(folder))
    ends = Counter(how for _, how in _ENDED.findall(log))
    print(f"{kinds.total()} edits ({kinds['broken']} of them no JSON)")
    how = ", ".join(f"{count} {kind}" for kind, count in ends.items())
    print(f"{len(_ACCEPTED.findall(log))} accepted; {how}")
    wrong = verdict(samples, log)
    print(f"{log.count('(slow_steps/')} lines about slow steps")
    print("\n".join(wrong) or "nothing grew, nothing is unaccounted for")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

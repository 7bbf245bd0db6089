"""Measure resident memory over many windows; shapes, memory and stacks take turns."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

import dynprof as dp
from benchmarks.tables import print_table
from dynprof.backends.torch.detached_close_selftest import SELF_TEST
from dynprof.runtime.memory import resident_mb

WINDOWS = int(sys.argv[1]) if len(sys.argv) > 1 else 300
MARKS = (30, 100, 200, 300)


def main() -> None:
    """Open one window after the other; print the growth since the thirtieth."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)])
    batch = torch.randn(32, 64)
    resident: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        dp.init(folder)
        while SELF_TEST.answer is None:
            model(batch).sum().backward()
        for number in range(1, WINDOWS + 1):
            settings = {"record_shapes": number % 3 == 1, "profile_memory": number % 3 == 2}
            settings["with_stack"] = number % 3 == 0
            asked = Path(folder) / "asked.json"
            asked.write_text(json.dumps({"activities": ["CPU"], "active": 5, **settings}))
            dp.start(asked)
            saved = dp.status().last_capture
            while dp.status().last_capture == saved:
                model(batch).sum().backward()
                dp.step()
            if number in MARKS or number == WINDOWS:
                resident[number] = resident_mb()
        dp.shutdown()
    first = resident[min(resident)]
    rows = [(str(n), f"{mb:.0f} MB", f"{mb - first:+.1f} MB") for n, mb in resident.items()]
    print_table("Memory over windows", ("windows", "resident", "since the first mark"), rows)


if __name__ == "__main__":
    main()

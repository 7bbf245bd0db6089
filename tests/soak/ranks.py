"""Ranks that agree, over many windows: each has the same iterations on all of them.

``python -m tests.soak.ranks [WINDOWS] [RANKS] [MS]`` trains with gloo, a step every so many
milliseconds with as much jitter; one rank is held up now and then for a second. The oracle are the
iterations that the script itself marks in the traces. It ends with 1 if a window differs.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import tempfile
import time
from pathlib import Path

from dynprof.captures.window_record import load_window_record
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks
from tests.integration.running import wait_for

JOB = """
import itertools, os, random, time
import torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
rank = dist.get_rank()
dp.init("prof_config")
dice, flag, model = random.Random(rank), torch.zeros(1), torch.nn.Linear(32, 32)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in itertools.count():
    with torch.profiler.record_function(f"Iteration#{{number}}"):
        time.sleep({ms} / 1000 * (0.5 + dice.random()))
        if rank == 1 and dice.random() < 0.002:
            time.sleep(1)
        optimizer.zero_grad()
        model(torch.randn(8, 32)).square().mean().backward()
        optimizer.step()
        flag.fill_(os.path.exists("enough"))
        dist.all_reduce(flag)
    dp.step()
    if flag.item():
        break
dist.destroy_process_group()
"""


def iterations(path: Path) -> list[int]:
    """Return those that a trace holds."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = (re.fullmatch(r"Iteration#(\d+)", event.get("name", "")) for event in events)
    return sorted({int(name[1]) for name in names if name})


def main(windows: int = 100, count: int = 4, ms: float = 5.0) -> int:
    """Ask for windows one after the other; return how many were wrong."""
    wrong, agreed_ms = 0, []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        root = folder / "prof_config"
        with ranks(folder, JOB.format(ms=ms), count) as running:
            wait_for("the ranks", lambda: len([*root.glob("status/*.json")]) == count or None)
            time.sleep(2)
            for number in range(windows):
                before = set(root.glob("step_*"))
                active = 1 + number % 4
                code, _, errors = dynprof("arm", root, "--active", active, "--wait")
                (window,) = set(root.glob("step_*")) - before
                found = [iterations(path) for path in window.glob("*.pt.trace.json.gz")]
                right = found == found[:1] * count and len(found[0]) == active
                record = load_window_record(window / "info" / "window.json")
                agreed_ms.append(record.agreed_ms)
                if code or not right or not record.complete:
                    wrong += 1
                    print(f"{window.name}: exit code {code}, {found}, {record.missing}", errors)
            (folder / "enough").touch()
            end_well(running, patience=3)
    agreed_ms.sort()
    middle, worst = agreed_ms[len(agreed_ms) // 2], agreed_ms[-1]
    print(f"{windows} windows of {count} ranks, steps of {ms:g} ms: {wrong} wrong; "
          f"agreed in {middle:.0f} ms (median), {worst:.0f} ms at most")  # fmt: skip
    return wrong


if __name__ == "__main__":
    given = [float(one) for one in sys.argv[1:]]
    sys.exit(bool(main(*map(int, given[:2]), *given[2:])))

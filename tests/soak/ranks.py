"""Many windows of ranks that agree: all ranks record the same iterations.

``python -m tests.soak.ranks [WINDOWS] [RANKS] [MS] [torchrun]`` trains with gloo. ``MS`` is the
time of a step, with the same amount of jitter. With ``1-200`` it changes every 50 steps. From time
to time one rank pauses for a second.

The oracles are the iterations that the script marks in the traces, and the losses of the same
training without dynprof. The exit code is 1 if a window or a loss differs.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.captures.window_record import load_window_record
from tests.integration.commands import dynprof
from tests.integration.launching import end_well, launched, ranks
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = """
import itertools, os, random, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, alone = dist.get_rank(), {alone}
if not alone:
    import dynprof as dp
    dp.init("prof_config")
torch.set_num_threads(1)
torch.manual_seed(0)
dice, flag, model = random.Random(rank), torch.zeros(1), torch.nn.Linear(32, 32)
model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(1 + rank)
losses = []
for number in itertools.count():
    with torch.profiler.record_function(f"Iteration#{{number}}"):
        if not alone:
            pace = {least} * ({most} / {least}) ** random.Random(number // 50).random()
            time.sleep(pace / 1000 * (0.5 + dice.random()))
            if rank == 1 and dice.random() < 0.002:
                time.sleep(1)
        optimizer.zero_grad()
        loss = model(torch.randn(8, 32)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        flag.fill_(number + 1 == alone if alone else os.path.exists("enough"))
        dist.all_reduce(flag)
    if not alone:
        dp.step()
    if flag.item():
        break
with open(f"losses_{{rank}}", "w") as file:
    file.write("\\n".join(map(repr, losses)))
dist.destroy_process_group()
"""
"""The script of a rank. It trains a number of steps, without dynprof if it is alone."""
TORCHRUN = ("--standalone",)


@contextlib.contextmanager
def job(folder: Path, script: str, count: int, *, torchrun: bool) -> Iterator[None]:
    """Run a script as a number of ranks in a new folder; it must succeed."""
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        if torchrun:
            begin = launched(folder, script, *TORCHRUN, f"--nproc-per-node={count}")
            running = [stack.enter_context(begin)]
        else:
            running = stack.enter_context(ranks(folder, script, count))
        yield
        (folder / "enough").touch()
        end_well(running, patience=9)


def losses(folder: Path, rank: int) -> list[str]:
    """Return the losses that a rank wrote at its end."""
    return (folder / f"losses_{rank}").read_text().splitlines()


def other_losses(beside: Path, count: int) -> list[int]:
    """Return the ranks whose losses differ from those of the same training alone."""
    steps = len(losses(beside, 0))
    alone = beside.with_name("alone")
    with job(alone, JOB.format(least=1, most=1, alone=steps), count, torchrun=False):
        pass
    return [rank for rank in range(count) if losses(beside, rank) != losses(alone, rank)]


def iterations(path: Path) -> list[int]:
    """Return the iterations in a trace."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = (re.fullmatch(r"Iteration#(\d+)", event.get("name", "")) for event in events)
    return sorted({int(name[1]) for name in names if name})


def main(windows: int, count: int, ms: str, launcher: str) -> int:
    """Request one window after the other; return the number of errors, including losses."""
    wrong, agreed_ms = 0, []
    least, _, most = ms.partition("-")
    script = JOB.format(least=least, most=most or least, alone=0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "beside")
        root = folder / "prof_config"
        with job(folder, script, count, torchrun=launcher == "torchrun"):
            wait_for("the ranks", lambda: len([*root.glob("status/*.json")]) == count or None)
            time.sleep(2)
            for number in range(windows):
                before = set(root.glob("step_*"))
                active = 1 + number % 4
                code, _, errors = dynprof("arm", root, "--active", active, "--wait")
                window = next(iter(set(root.glob("step_*")) - before), None)
                if window is None:
                    wrong += 1
                    print(f"no window: exit code {code}", errors, flush=True)
                    continue
                found = [iterations(path) for path in window.glob("*.pt.trace.json.gz")]
                right = found == found[:1] * count and len(found[0]) == active
                record = load_window_record(window / "info" / "window.json")
                agreed_ms.append(record.agreed_ms)
                if code or not right or not record.complete:
                    wrong += 1
                    print(
                        f"{window.name}: exit code {code}, {found}, {record.missing}",
                        errors,
                        flush=True,
                    )
        steps, others = len(losses(folder, 0)), other_losses(folder, count)
    agreed_ms.sort()
    middle, worst = agreed_ms[len(agreed_ms) // 2], agreed_ms[-1]
    print(f"{windows} windows of {count} ranks, steps of {ms} ms: {wrong} wrong; "
          f"agreed in {middle:.0f} ms (median), {worst:.0f} ms at most; "
          f"losses of {steps:,} steps: {len(others)} ranks have others", flush=True)  # fmt: skip
    return wrong + len(others)


if __name__ == "__main__":
    given = sys.argv[1:]
    windows, count, ms, launcher = [*given, *("100", "4", "5", "")[len(given) :]]
    sys.exit(bool(main(int(windows), int(count), ms, launcher)))

"""Jobs whose ranks agree, and their files."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
from typing import TYPE_CHECKING

from dynprof.captures.manifest import load_manifest
from dynprof.captures.window_record import load_window_record
from dynprof.errors import CaptureError
from tests.integration.launching import end_well, launched, ranks
from tests.integration.running import below, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dynprof.captures.manifest import Manifest
    from dynprof.captures.window_record import WindowRecord

JOB = """
import itertools, os, random, time
import torch, torch.distributed as dist, dynprof as dp
from dynprof.ranks import agreements, leader
agreements.PROPOSED_WITHIN_S, agreements.LEADER_WAIT_S, leader.JOIN_S = 1.0, 3.0, 3.0
dist.init_process_group("gloo")
rank = dist.get_rank()
if rank not in {without}:
    dp.init(f"{directory}")
dice, flag = random.Random(rank), torch.zeros(1)
for number in itertools.count():
    with torch.profiler.record_function(f"Iteration#{{number}}"):
        time.sleep({ms} / 1000 * (1 + dice.random()))
        flag.fill_(os.path.exists("enough"))
        dist.all_reduce(flag)
    dp.step()
    if flag.item():
        break
    if rank == 0 and os.path.exists("leave"):
        os.remove("leave")
        dp.shutdown()
{leaving}
print("trained")
"""
SHARED, APART = "prof_config", "desk_{rank}"


@contextlib.contextmanager
def job(
    folder: Path,
    count: int,
    directory: str = SHARED,
    ms: float = 5.0,
    without: tuple[int, ...] = (),
    said: str = "agree on the steps",
    *torchrun: str,
    leaving: str = "dist.destroy_process_group()",
) -> Iterator[None]:
    """Run a job whose ranks agree, which must succeed; with options it runs under torchrun."""
    script = JOB.format(directory=directory, ms=ms, without=without, leaving=leaving)
    with contextlib.ExitStack() as stack:
        if torchrun:
            options = [*torchrun, f"--nproc-per-node={count}"]
            running = [stack.enter_context(launched(folder, script, *options))]
        else:
            running = stack.enter_context(ranks(folder, script, count))
        watching = count - len(without)
        wait_for("the ranks", lambda: everything(folder).count(said) >= watching or None)
        yield
        (folder / "enough").touch()
        assert "Traceback" not in end_well(running)


def log(root: Path) -> str:
    """Return the logs of all ranks that watch a directory."""
    return "".join(path.read_text() for path in sorted(root.glob("log/*.log")))


def everything(folder: Path) -> str:
    """Return the logs of all ranks of a job."""
    return "".join(log(path) for path in folder.iterdir() if path.is_dir())


def manifests(folder: Path) -> list[Manifest]:
    """Return the manifests of all saved captures below a folder."""
    found = []
    for path in below(folder, "*.info.json"):
        try:
            found.append(load_manifest(path))
        except CaptureError:
            if path.exists():  # otherwise an old baseline that the job removed
                raise
    return [manifest for manifest in found if manifest.cost.save_ms is not None]


def the_record(root: Path) -> WindowRecord:
    """Return the record of the only window below a directory."""
    (path,) = root.glob("step_*/info/window.json")
    return load_window_record(path)


def numbers_in_trace(path: Path, what: str = "ProfilerStep") -> set[int]:
    """Return the steps that torch or the script has marked in a trace: the oracle."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    names = (re.fullmatch(rf"{what}#(\d+)", event.get("name", "")) for event in events)
    return {int(name[1]) for name in names if name}

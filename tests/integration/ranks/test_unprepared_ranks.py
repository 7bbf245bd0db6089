"""Ranks whose script does not use dynprof agree like those that call ``dp.init()``."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from tests import processes
from tests.integration.commands import dynprof
from tests.integration.launch.unprepared import ended
from tests.integration.launching import statuses, when
from tests.integration.ranks.agreeing import SHARED, log, numbers_in_trace, the_record
from tests.integration.running import wait_for
from tests.processes import DYNPROF

pytest.importorskip("torch", reason="torch is not installed")

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import itertools, os, time
from pathlib import Path
import torch, torch.distributed as dist

Path("begun" + os.environ["RANK"]).touch()
def work():
    return torch.ones(2).sum()

while not Path("prof_config", "status", "rank_" + os.environ["RANK"] + ".json").exists():
    time.sleep(0.01)
dist.init_process_group("gloo")
flag = torch.zeros(1)
for number in itertools.count():
    if number == 300 * dist.get_rank():
        train = work  # which dynprof finds by this name
    with torch.profiler.record_function(f"Iteration#{number}"):
        time.sleep(0.005)
        flag.fill_(os.path.exists("enough"))
        dist.all_reduce(flag)
        work()
    if flag.item():
        break
dist.destroy_process_group()
"""
"""Its process group starts while dynprof watches; rank 1 counts its steps later than rank 0."""
TORCHRUN = ("--standalone", "--nproc-per-node=2")


def all_record_the_same(folder: Path) -> None:
    """Record a window; both ranks have the same iterations of the script in it."""
    root = folder / SHARED
    agree = "2 ranks agree on the steps"
    wait_for("the ranks", lambda: log(root).count(agree) == 2 or None)
    when(folder, "steps", lambda now: [s.step > 2 for s in now.values()] == [True, True])
    code, _, errors = dynprof("arm", root, "--active", 3, "--wait")
    assert code == 0, errors
    assert "2 of 2 ranks saved it: " in errors
    assert (set(the_record(root).ranks), the_record(root).complete) == ({0, 1}, True)
    assert len(re.findall(r"agreed on step \d+", log(root))) == 1
    (window,) = root.glob("step_*")
    first, second = (
        numbers_in_trace(path, "Iteration") for path in window.glob("*.pt.trace.json.gz")
    )
    assert (first, len(first)) == (second, 3)


@pytest.mark.long
def test_ranks_that_dynprof_run_begins(tmp_path: Path) -> None:
    """The script makes its process group while it is watched; the launcher is not watched."""
    (tmp_path / "job.py").write_text(SCRIPT)
    command = [*DYNPROF, "run", "--step-on", ":train", "torchrun", *TORCHRUN, "job.py"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with processes.start(command, cwd=tmp_path, env=env, stdout=-3) as process:
        all_record_the_same(tmp_path)
        watched = statuses(tmp_path)
        assert set(watched) == {"rank_0.json", "rank_1.json"}
        assert process.pid not in {status.pid for status in watched.values()}
        ended(tmp_path, process)

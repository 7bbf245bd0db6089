"""Descriptors: those of a job that goes on as another program, or that closes them all."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tests import processes

if TYPE_CHECKING:
    from pathlib import Path

GENERATIONS = """
import json, os, sys, time
from pathlib import Path
number = int(sys.argv[1])
def link(name):
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:  # what the listing itself had open
        return None
print(sorted(filter(None, map(link, os.listdir("/proc/self/fd")))), flush=True)
if number < 3:
    import dynprof as dp
    dp.init("prof_config", watch="events")
    assert "inotify" in str(list(map(link, os.listdir("/proc/self/fd"))))
    Path("asked.json").write_text(json.dumps({"active": 1, "activities": ["CPU"]}))
    dp.start("asked.json")
    dp.step()
    while dp.status().state != "idle":
        time.sleep(0.001)
    os.execv(sys.executable, [sys.executable, __file__, str(number + 1)])
"""


def test_a_job_that_executes_itself_again_and_again(tmp_path: Path) -> None:
    """No descriptor of dynprof's is open in the program that the process goes on as."""
    (tmp_path / "job.py").write_text(GENERATIONS)
    done = processes.run([sys.executable, "job.py", "0"], cwd=tmp_path, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    first, *later = done.stdout.splitlines()
    assert later == [first] * 3


CLOSES_ALL = """
import json, os, sys, time
from pathlib import Path
import dynprof as dp
dp.init("prof_config", watch="events")
dp.step()
begun = time.time()
status = Path("prof_config/status/rank_0.json")
# In its first moments it reads and writes all the time, by several threads.
while json.loads(status.read_text())["heartbeat"] < begun + 0.5:
    time.sleep(0.01)
os.closerange(3, 256)
others = [os.open(os.devnull, os.O_RDONLY) for _ in range(int(sys.argv[1]))]
pipe = os.pipe()
files = [open(f"checkpoint{number}", "wb", buffering=0) for number in range(8)]
for file in files:
    file.write(b"weights")
print("trained", flush=True)
"""


@pytest.mark.parametrize("others", range(4))
def test_a_script_that_closes_every_descriptor(tmp_path: Path, others: int) -> None:
    """It ends, and nothing of dynprof's is written into what the script opens then."""
    done = processes.run(
        [sys.executable, "-c", CLOSES_ALL, str(others)], cwd=tmp_path, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
    written = [path.read_bytes() for path in tmp_path.glob("checkpoint*")]
    assert written == [b"weights"] * 8

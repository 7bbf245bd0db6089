"""The descriptors of a job that goes on as another program."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

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

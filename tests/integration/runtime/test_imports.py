"""dynprof's threads import nothing: a fork during an import harms the child.

Pydantic's first use of a type is loaded before as well. Otherwise a forked child hangs in its first
call of pydantic.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.commands import dynprof
from tests.integration.launching import end_well, ranks, statuses
from tests.integration.running import wait_for
from tests.integration.scripts import PYTHON_JOB
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path

WATCHING = """
import os, sys, threading
import pydantic

class Watching:
    def __init__(self):
        self.found, self.process = set(), os.getpid()
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name.startswith("dynprof") and os.getpid() == self.process:
            self.found.add((threading.current_thread().name, name))

def build(adapter, kind, **settings):
    watching.find_spec(str(kind))
    plain_build(adapter, kind, **settings)

watching = Watching()
sys.meta_path.insert(0, watching)
plain_build, pydantic.TypeAdapter.__init__ = pydantic.TypeAdapter.__init__, build
"""
WINDOWS = """
def stepped(count):
    for _ in range(count):
        time.sleep(0.005)
        dp.step()

def finish():  # a window may wait for a step, as for the self-test of the close
    while dp.status().state != "idle":
        stepped(1)

settings = {"mstx": True, "host_sys": ["cpu", "mem"], "gc_detect_threshold": 0.1}
for backend in BACKENDS:
    window(active=3, backend=backend, analyse=True, with_stack=True, experimental_config=settings)
    finish()
window(active=2, experimental_config={"profiler_level": "Level_none", "mstx": True})
finish()
for text in ("{ nonsense", json.dumps({"active": 2, "memory_snapshot": True})):
    seen = dp.status().edits
    Path("prof_config/profiler_config.json").write_text(text)
    while dp.status().edits == seen:
        stepped(1)
finish()
dp.shutdown()
assert not watching.found, watching.found
print("done")
"""


@pytest.mark.parametrize("torch", [False, True])
def test_threads_of_dynprof_import_nothing(tmp_path: Path, *, torch: bool) -> None:
    """This covers jobs with and without torch, all kinds of windows, and good and bad edits."""
    if torch:
        pytest.importorskip("torch", reason="torch is not installed")
    backends = ("torch",) if torch else ("python",)
    script = f"{'import torch' if torch else ''}\n{WATCHING}{PYTHON_JOB}\nBACKENDS = {backends}\n"
    done = run([sys.executable, "-c", script + WINDOWS], cwd=tmp_path)
    assert done.stdout == "done\n", done.stderr


AGREEING = """
import time, torch, torch.distributed as dist, dynprof as dp
dist.init_process_group("gloo")
dp.init("prof_config")
flag = torch.zeros(1)
while not flag.item():
    time.sleep(0.01)
    flag.fill_(os.path.exists("enough"))
    dist.all_reduce(flag)
    dp.step()
dp.shutdown()
dist.destroy_process_group()
assert not watching.found, watching.found
"""


def test_threads_of_agreeing_ranks_import_nothing(tmp_path: Path) -> None:
    """This covers the leader and the other ranks."""
    pytest.importorskip("torch", reason="torch is not installed")
    root = tmp_path / "prof_config"
    with ranks(tmp_path, WATCHING + AGREEING, 2) as running:
        wait_for("the ranks", lambda: len(statuses(tmp_path)) == 2 or None)
        for _ in range(2):
            code, _, errors = dynprof("arm", root, "--active", 2, "--wait")
            assert code == 0, errors
        (tmp_path / "enough").touch()
        end_well(running)

"""What dynprof's threads use is loaded before they begin: a fork amid an import harms the child."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.scripts import PYTHON_JOB
from tests.processes import run

if TYPE_CHECKING:
    from pathlib import Path

WATCHING = """
import os, sys, threading

class Watching:
    def __init__(self):
        self.found, self.process = set(), os.getpid()
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread().name.startswith("dynprof") and os.getpid() == self.process:
            self.found.add((threading.current_thread().name, name))

watching = Watching()
sys.meta_path.insert(0, watching)
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
    """Whatever they do: with and without torch, windows of all kinds, edits good and bad."""
    if torch:
        pytest.importorskip("torch", reason="torch is not installed")
    backends = ("torch", "python") if torch else ("python",)
    script = f"{'import torch' if torch else ''}\n{WATCHING}{PYTHON_JOB}\nBACKENDS = {backends}\n"
    done = run([sys.executable, "-c", script + WINDOWS], cwd=tmp_path)
    assert done.stdout == "done\n", done.stderr

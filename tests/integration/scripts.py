"""Scripts in their own process, which must succeed."""

from __future__ import annotations

import gzip
import json
import os
import textwrap
from typing import TYPE_CHECKING, Any

from dynprof.captures.manifest import load_manifest
from tests import warm_interpreter
from tests.integration.running import below

if TYPE_CHECKING:
    from pathlib import Path

ONE_RANK_HANGS = """
import os, time, torch, torch.distributed as dist, dynprof as dp
from dynprof.session import periodic_checks
periodic_checks.stuck_after_s = lambda *_: 3.0
dist.init_process_group("gloo")
dp.init("prof_config")

def fetch_from_store():
    while True:
        time.sleep(1)

for step in range(50):
    if step == 40 and dist.get_rank() == 2:
        fetch_from_store()
    time.sleep(0.05)
    dist.all_reduce(torch.ones(4))
    dp.step()
"""
"""Ranks that all-reduce in each step, of which rank 2 does not in step 40."""
JOB = """
import threading, time, torch, dynprof as dp
from pathlib import Path
from dynprof.backends.torch.detached_close_selftest import SELF_TEST

def work():
    return torch.ones(3) + 1

def profile():
    with torch.profiler.profile() as mine:
        work()
    assert any(event.name == "aten::add" for event in mine.events())

def elsewhere():
    thread = threading.Thread(target=profile)
    thread.start()
    thread.join()

def steps(count):
    for _ in range(count):
        work()
        dp.step()

def window(**settings):
    import json
    Path("asked.json").write_text(json.dumps({"activities": ["CPU"], **settings}))
    dp.start("asked.json")

work()  # a child forked while another thread runs torch's very first operator hangs, in plain torch
dp.init("prof_config")
while SELF_TEST.answer is None:
    time.sleep(0.01)
"""
"""The beginning of a job with torch: helpers to step, record and profile."""
TUNABLES = "glibc.malloc.mmap_threshold=2000:glibc.malloc.mmap_max=200000:glibc.malloc.perturb=165"
"""glibc returns each freed block to the system at once, and overwrites the smaller ones.

Code that uses a freed block crashes, instead of using the memory of other code.
"""
HELPERS = """
def idle():
    from dynprof.backends.torch.kineto import KINETO  # a lost window may still end
    while dp.status().state != "idle" or KINETO.collecting:
        time.sleep(0.01)

def at_once(count, action):
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
PYTHON_JOB = """
import json, os, signal, sys, threading, time
from pathlib import Path
import dynprof as dp
dp.init("prof_config")
def window(**settings):
    Path("asked.json").write_text(json.dumps({"activities": ["CPU"], **settings}))
    dp.start("asked.json")
def idle():
    while dp.status().state != "idle":
        time.sleep(0.001)
"""
"""The beginning of a job without torch."""


def run(
    folder: Path, script: str, closing: str = "detached", *, unloads: bool = False, **env: str
) -> str:
    """Run a script that must succeed; return dynprof's log.

    Args:
        folder: Its working directory.
        script: Its code after the part that all scripts share.
        closing: How windows close: "detached" or "inline".
        unloads: As :func:`warm_interpreter.run` takes it.
        env: Variables to add, including those for memory allocation.
    """
    text = JOB + HELPERS + textwrap.dedent(script)
    env = {**os.environ, "DYNPROF_CLOSE": closing, **env}
    done = warm_interpreter.run(text, folder, env, unloads=unloads)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    return log(folder)


def log(folder: Path) -> str:
    """Return the logs in a script's folder."""
    return "".join(path.read_text() for path in (folder / "prof_config" / "log").iterdir())


def manifests(folder: Path) -> list[Any]:
    """Return the manifests of a script's captures, in the order of their requests."""
    found = map(load_manifest, below(folder / "prof_config", "*.info.json"))
    return sorted(found, key=lambda manifest: manifest.request.number)


def events(folder: Path, manifest: Any) -> list[dict[str, Any]]:
    """Return the events of a capture's trace."""
    (path,) = (folder / "prof_config").rglob(manifest.trace)
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def run_without_torch(folder: Path, script: str) -> str:
    """Run a script without torch that must succeed; return its output."""
    text = PYTHON_JOB + textwrap.dedent(script)
    done = warm_interpreter.run(text, folder, os.environ, needs=warm_interpreter.WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    return done.stdout

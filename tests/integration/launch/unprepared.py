"""Jobs whose scripts do not use dynprof."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil

from tests import processes
from tests.integration.launching import when
from tests.processes import DYNPROF, Process

if TYPE_CHECKING:
    from pathlib import Path

LOOP = """
import sys, time
from pathlib import Path

def work():
    time.sleep(0.005)

while not Path("enough").exists():
    work()
"""
"""A loop that ends when a file exists; each return of ``work`` is a step."""


def begun(folder: Path, script: str, *options: str, **settings: str) -> Process:
    """Start ``dynprof run OPTIONS job.py`` in a folder."""
    (folder / "job.py").write_text(script)
    env = {**os.environ, **settings}
    return processes.start([*DYNPROF, "run", *options, "job.py"], cwd=folder, env=env)


def ended(folder: Path, process: Process) -> str:
    """End a loop; return its stderr."""
    (folder / "enough").touch()
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return errors


def logs(folder: Path) -> list[str]:
    """Return the log of every process that watched."""
    return [path.read_text() for path in (folder / "prof_config/log").glob("*.log")]


def is_stepping(folder: Path) -> None:
    """Wait until one process watches and its steps are counted."""
    when(folder, "steps", lambda now: [s.step > 2 for s in now.values()] == [True])


def process_of_another_user() -> int | None:
    """Return the oldest process of another user, if there is one."""
    for process in psutil.process_iter(["uids"]):  # a process that has just ended has none
        if (uids := process.info["uids"]) and uids.real != os.getuid():
            return process.pid
    return None

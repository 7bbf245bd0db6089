"""Processes without dynprof, and commands that attach to them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from tests import processes, warm_interpreter
from tests.integration.commands import dynprof
from tests.integration.running import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes import Process

BEGUN = "from pathlib import Path\nPath('begun').touch()\n"


def begun(
    folder: Path,
    script: str,
    python: str | Path = sys.executable,
    before: str = "while",
    **env: str,
) -> Process:
    """Start a script with plain Python, and wait until it runs.

    Args:
        folder: Its working directory.
        script: The script.
        python: The Python that runs it; if empty, a fork of an interpreter that has loaded torch.
        before: The line before which it reports its start; empty if the script reports by itself.
        env: Variables to add to its environment.
    """
    told = script.replace(before, f"{BEGUN}{before}", 1) if before else script
    path, all_env = folder / "job.py", {**os.environ, **env}
    path.write_text(told)
    process: Process
    if python:
        process = processes.start([python, "job.py"], cwd=folder, env=all_env)
    else:
        process = warm_interpreter.start(path, all_env)
    wait_for("its beginning", lambda: (folder / "begun").exists() or None)
    return process


def attached(process: Process, *options: object) -> str:
    """Attach to a process; return the command's output."""
    code, output, errors = dynprof("attach", process.pid, *options)
    assert code == 0, errors
    return output


def refusal(pid: int) -> str:
    """Return the error of an attach."""
    code, output, errors = dynprof("attach", pid, "--timeout", 5)
    assert (code, output) in ((3, ""), (4, "")), output + errors
    return errors

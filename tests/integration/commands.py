"""The dynprof command, run as by an operator."""

from __future__ import annotations

import os

from tests import processes
from tests.processes import DYNPROF, Process


def start(*arguments: object) -> Process:
    """Start the command."""
    return processes.start([*DYNPROF, *map(str, arguments)], env=_wide())


def dynprof(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its exit code, its output, and its stderr."""
    done = processes.run([*DYNPROF, *map(str, arguments)], env=_wide())
    return done.returncode, done.stdout, done.stderr


def _wide() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}

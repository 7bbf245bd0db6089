"""The command, run as an operator runs it."""

from __future__ import annotations

import os

from tests import processes
from tests.processes import DYNPROF, Process


def start(*arguments: object) -> Process:
    """Start the command."""
    wide = {**os.environ, "COLUMNS": "200"}
    return processes.start([*DYNPROF, *map(str, arguments)], env=wide)


def dynprof(*arguments: object) -> tuple[int, str, str]:
    """Run the command; return its exit code, its output, and what it said on stderr."""
    process = start(*arguments)
    output, errors = process.communicate()
    return process.returncode, output, errors

"""Scripts with a process-wide session, and the traces that they write."""

from __future__ import annotations

import gzip
import json
import os
import textwrap
from typing import TYPE_CHECKING, Any

from tests import warm_interpreter

if TYPE_CHECKING:
    from pathlib import Path

PRELUDE = """
import threading, warnings
import torch
from dynprof import acl
from dynprof.errors import SessionError
warnings.simplefilter("error", RuntimeWarning)
warnings.filterwarnings("ignore", "there is no device")
def model(size):
    return torch.ones(size, size).mm(torch.ones(size, size))
def refused(call, *args):
    try:
        call(*args)
    except SessionError as error:
        print(error)
    else:
        raise AssertionError(f"{call} was not refused")
"""
HERE = "acl.init()\nacl.prof.init('out')\none = acl.prof.Config(devices=[0, 1])\n"


def run(folder: Path, script: str) -> list[str]:
    """Run a script in its own process, because a process has one session; return its lines."""
    done = warm_interpreter.run(
        PRELUDE + textwrap.dedent(script), folder, os.environ, unloads=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def traces(folder: Path) -> list[dict[str, Any]]:
    """Return the traces in a folder, the oldest first."""
    found = []
    for path in sorted(folder.glob("*.trace.json.gz"), key=lambda p: p.stat().st_mtime_ns):
        with gzip.open(path) as file:
            found.append(json.load(file))
    return found


def products(trace: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the matrix products in a trace."""
    return [e for e in trace["traceEvents"] if e["name"] == "aten::mm"]

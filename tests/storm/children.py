"""Forked children of a storm, and detection of those that hang in plain torch."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader

import dynprof as dp

if TYPE_CHECKING:
    import random
    from multiprocessing.context import ForkProcess, SpawnProcess

STUCK_S = 60.0
"""The timeout of a child in plain torch. Rarely such a child hangs, also without dynprof."""
STUCK = 1
"""The exit code of such a child, after it has printed its stacks."""


def watch() -> None:
    """Watch every child forked from now on; call this after ``dp.init()``.

    The watch then begins after dynprof's own work in the child. A hang in dynprof would last
    forever, and so be noticed.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler raises for any thread's child
    os.register_at_fork(
        after_in_child=lambda: faulthandler.dump_traceback_later(STUCK_S, exit=True)
    )


def fork() -> int:
    """Fork a child that computes and takes a step; return its exit code."""
    if not (child := os.fork()):
        with contextlib.suppress(Exception):
            torch.ones(3).add(1)
            faulthandler.cancel_dump_traceback_later()  # a hang after this line is dynprof's
            dp.step()
            os._exit(0)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def load(chance: random.Random) -> int:
    """Load data with forked workers; return their exit codes."""
    generator = torch.Generator()
    loader = DataLoader(range(4), num_workers=chance.randint(0, 2), generator=generator)
    values = iter(loader)
    try:
        assert sorted(map(int, values)) == [0, 1, 2, 3]
    except RuntimeError:
        if STUCK not in [worker.exitcode for worker in getattr(values, "_workers", [])]:
            raise
        return STUCK
    return 0


def start(kind: type[ForkProcess | SpawnProcess]) -> int:
    """Start a process of multiprocessing that computes; return its exit code."""
    child = kind(target=compute)
    child.start()
    child.join()
    return child.exitcode or 0


def compute() -> None:
    """Run an operator, and take a step."""
    torch.ones(3).add(1)
    faulthandler.cancel_dump_traceback_later()  # a hang after this line is dynprof's
    dp.step()

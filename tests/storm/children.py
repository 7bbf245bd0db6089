"""Forked children of a storm, and which of them hang in plain torch: not for dynprof's sake."""

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
"""A child that is in plain torch for longer hangs there, as without dynprof once in a while."""
STUCK = 1
"""What such a child ends with, once it has said where its threads are."""


def watch() -> None:
    """Watch over every child forked from now on; to be called after ``dp.init()``.

    So it is watched once dynprof has done what it does in a child; that would hang for good.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises on main what other threads' do
    os.register_at_fork(
        after_in_child=lambda: faulthandler.dump_traceback_later(STUCK_S, exit=True)
    )


def fork() -> int:
    """Fork a child that computes, and takes a step; return what it ends with."""
    if not (child := os.fork()):
        with contextlib.suppress(Exception):
            torch.ones(3).add(1)
            faulthandler.cancel_dump_traceback_later()  # from here on dynprof would hang
            dp.step()
            os._exit(0)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def load(chance: random.Random) -> int:
    """Load data with forked workers; return what they end with."""
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
    """Start a process of multiprocessing that computes; return what it ends with."""
    child = kind(target=compute)
    child.start()
    child.join()
    return child.exitcode or 0


def compute() -> None:
    """Run an operator, and take a step."""
    torch.ones(3).add(1)
    faulthandler.cancel_dump_traceback_later()  # from here on dynprof would hang
    dp.step()

"""A script that becomes a daemon: it forks, the parent ends, and the child is the job.

A forked child is otherwise none of dynprof's business. So a child looks for half a minute whether
its parent has ended; the workers of multiprocessing, which end with their parents, do not.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import TYPE_CHECKING

import psutil

from dynprof.launch.which_process import leave_to_children
from dynprof.process.forked_child import forget_in_child
from dynprof.process.threads import own_thread
from dynprof.wall import StderrNotes, Wall

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKS = 60
PAUSE_S = 0.5


def follow_daemons(begin_again: Callable[[], object]) -> None:
    """Begin again in a forked child that is left over when the process that watched has ended.

    Args:
        begin_again: Begins a session in the child.
    """
    watched = os.getpid()

    def after_fork() -> None:
        own_thread(lambda: _take_over(watched, begin_again), "dynprof-daemon").start()

    forget_in_child(after_fork)


def _take_over(watched: int, begin_again: Callable[[], object]) -> None:
    for _ in range(LOOKS):
        time.sleep(PAUSE_S)
        if multiprocessing.parent_process() is not None:
            return
        if not _is_there(watched):
            leave_to_children()
            Wall(StderrNotes()).attempt("watching as a daemon", begin_again)
            return


def _is_there(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

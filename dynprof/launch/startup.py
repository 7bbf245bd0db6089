"""Starts a session in an interpreter whose environment requests one, and in its daemons."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from dynprof.dynamic_profile import disabled, init_from_outside, running
from dynprof.errors import LaunchError, UnusablePathError
from dynprof.launch.environment import (
    STEPS,
    effective_variable,
    mark_as_watched,
    requested_directory,
    this_program,
    why_not_a_rank,
)
from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes
from dynprof.runtime.modules import unload_shadowed
from dynprof.runtime.process_hooks import call_in_child
from dynprof.runtime.threads import own_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

POLLS = 60
"""Number of checks in a forked child whether the watched process has ended: 30 s in total."""
POLL_S = 0.5
"""Seconds between two of these checks."""
_begun = False


def begin(before: Collection[str] = ()) -> None:
    """Watch the directory that the environment names, if this process is a rank; once only.

    An expected failure is one line on standard error, another one a traceback. The script still
    runs, and with its own modules.

    Args:
        before: The modules loaded before dynprof; empty if unknown.
    """
    global _begun
    if _begun or disabled():
        return
    _begun = True
    program = this_program()
    if requested_directory(os.environ)[0] and not why_not_a_rank(program, os.environ, os.getpid()):
        from dynprof.runtime.error_boundary import ErrorBoundary, StderrNotes

        by = effective_variable(os.environ)
        ErrorBoundary(StderrNotes()).attempt(f"watching as {by} asks", lambda: _begin(by))
    if before:
        unload_shadowed(before, program.import_folders())


def _begin(by: str) -> None:
    from dynprof.backends.torch.kineto import keep_kineto_quiet_without_devices

    asked_for, other = requested_directory(os.environ)
    directory = Path(asked_for).expanduser().absolute()
    os.environ[by] = str(directory)  # for children that start in another directory
    mark_as_watched()
    keep_kineto_quiet_without_devices()

    def watch() -> None:
        try:
            init_from_outside(directory, os.environ.get(STEPS) or None, by)
        except ValueError as error:
            is_named = str(error).startswith("DYNPROF_")
            raise LaunchError(str(error) if is_named else f"{STEPS}: {error}") from None
        except UnusablePathError as error:
            raise LaunchError(f"{error}; this process runs unwatched") from None

    watch()
    if other and (session := running()):
        session.note(other)
    follow_daemons(watch)


def follow_daemons(begin_again: Callable[[], object]) -> None:
    """Start a session in a forked child if the process that watched ends: the child is a daemon.

    Args:
        begin_again: Starts a session in the child.
    """
    watched = os.getpid()

    def after_fork() -> None:
        own_thread(lambda: _take_over(watched, begin_again), "dynprof-daemon").start()

    call_in_child(after_fork)


def _take_over(watched: int, begin_again: Callable[[], object]) -> None:
    for _ in range(POLLS):
        time.sleep(POLL_S)
        if multiprocessing.parent_process() is not None:
            return
        if not _is_running(watched):
            mark_as_watched()
            ErrorBoundary(StderrNotes()).attempt("watching as a daemon", begin_again)
            return


def _is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

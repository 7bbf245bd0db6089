"""Begins a session as an interpreter starts whose environment asks for it, before its script."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.dynamic_profile import disabled, init_from_outside, running
from dynprof.errors import LaunchError, UnusablePathError
from dynprof.launch.variables import STEPS, directory_asked_for, variable_that_counts
from dynprof.launch.which_process import leave_to_children, this_program, why_left_alone
from dynprof.process.shadowed_modules import forget_shadowed

if TYPE_CHECKING:
    from collections.abc import Collection

_begun = False


def begin(before: Collection[str] = ()) -> None:
    """Watch the directory that the environment names, where this process is a rank; once only.

    Whatever fails is a sentence on standard error: the script runs, and with its own modules.

    Args:
        before: The modules that were there before any of dynprof's; empty where nobody knows.
    """
    global _begun
    if _begun or disabled():
        return
    _begun = True
    program = this_program()
    if directory_asked_for(os.environ)[0] and not why_left_alone(program, os.environ, os.getpid()):
        from dynprof.wall import StderrNotes, Wall

        by = variable_that_counts(os.environ)
        Wall(StderrNotes()).attempt(f"watching as {by} asks", lambda: _begin(by))
    if before:
        forget_shadowed(before, program.folders())


def _begin(by: str) -> None:
    from dynprof.backends.kineto_messages import keep_kineto_quiet_without_devices
    from dynprof.launch.daemons import follow_daemons

    asked_for, other = directory_asked_for(os.environ)
    directory = Path(asked_for).expanduser().absolute()
    os.environ[by] = str(directory)  # a script that changes directory starts others from there
    leave_to_children()
    keep_kineto_quiet_without_devices()

    def watch() -> None:
        try:
            init_from_outside(directory, os.environ.get(STEPS) or None, by)
        except ValueError as error:
            raise LaunchError(f"{STEPS}: {error}") from None
        except UnusablePathError as error:
            raise LaunchError(f"{error}; this process runs unwatched") from None

    watch()
    if other and (session := running()):
        session.note(other)
    follow_daemons(watch)

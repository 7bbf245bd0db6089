"""``dynprof env``: make jobs watch the directory that their environment names."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.launch.environment import (
    CONFIG,
    STEPS,
    VENDORS_CONFIG,
    is_installed,
    pth_file,
    requested_directory,
)
from dynprof.launch.environment import install as install_file
from dynprof.launch.environment import uninstall as uninstall_file


def env(
    *,
    install: Annotated[
        bool,
        typer.Option("--install", metavar="", help="Make jobs of this Python read DYNPROF_CONFIG."),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", metavar="", help="Undo --install.")
    ] = False,
) -> None:
    """Show whether jobs of this Python read DYNPROF_CONFIG, and switch that on or off.

    After --install, DYNPROF_CONFIG=DIR in the environment of a job has the effect of dynprof run.
    So has PROF_CONFIG_PATH=DIR, unless torch_npu is installed; DYNPROF_CONFIG takes precedence.
    Interpreters without either variable only read one line.

    Exit code 0: done. 2: the file cannot be written or removed.

    Example: dynprof env --install && DYNPROF_CONFIG=prof_config ./start_training.sh
    """
    if install and uninstall:
        raise typer.BadParameter("--install and --uninstall are both given; keep one")
    try:
        if install:
            named = f"{CONFIG}=DIR or {VENDORS_CONFIG}=DIR"
            say(f"{install_file()} is installed: jobs with {named} watch DIR")
        elif uninstall:
            there = uninstall_file()
            say(f"{pth_file()} is removed" if there else f"{pth_file()} was not installed")
    except OSError as error:
        fail(f"{pth_file()} cannot be changed: {error.strerror}", UNREADABLE)
    if not (install or uninstall):
        _print_state()


def _print_state() -> None:
    """Print whether the file is installed, and the variables."""
    state = (
        "is installed" if is_installed() else "is not installed; dynprof env --install installs it"
    )
    say(f"{pth_file()} {state}")
    for name in (CONFIG, VENDORS_CONFIG, STEPS):
        say(f"{name}: {os.environ.get(name) or 'not set'}")
    if other := requested_directory(os.environ)[1]:
        say(other)

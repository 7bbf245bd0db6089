"""``dynprof env``: have jobs that somebody else starts watch where the environment says."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.launch.pth_file import install as install_file
from dynprof.launch.pth_file import is_installed, pth_file
from dynprof.launch.pth_file import uninstall as uninstall_file
from dynprof.launch.variables import CONFIG, STEPS, VENDORS_CONFIG, requested_directory


def env(
    *,
    install: Annotated[
        bool,
        typer.Option("--install", metavar="", help="Have interpreters of this Python look."),
    ] = False,
    uninstall: Annotated[
        bool, typer.Option("--uninstall", metavar="", help="Have them look no more.")
    ] = False,
) -> None:
    """Say whether jobs of this Python look at DYNPROF_CONFIG, and switch that on or off.

    With it installed, DYNPROF_CONFIG=DIR in the environment of a job does what dynprof run does,
    and PROF_CONFIG_PATH=DIR too, where torch_npu is not installed. DYNPROF_CONFIG goes first.
    Interpreters without either variable pay for reading one line.

    Exit code 0: done; 2: the file cannot be written or removed.

    Example: dynprof env --install && DYNPROF_CONFIG=prof_config ./start_training.sh
    """
    if install and uninstall:
        raise typer.BadParameter("--install and --uninstall are both given; keep one")
    try:
        if install:
            named = f"{CONFIG}=DIR or {VENDORS_CONFIG}=DIR"
            say(f"{install_file()} is installed: jobs with {named} watch it")
        elif uninstall:
            there = uninstall_file()
            say(f"{pth_file()} is removed" if there else f"{pth_file()} was not there")
    except OSError as error:
        fail(f"{pth_file()} cannot be changed: {error.strerror}", UNREADABLE)
    if not (install or uninstall):
        _print_state()


def _print_state() -> None:
    """Say how things stand."""
    state = "is installed" if is_installed() else "is not installed; dynprof env --install does it"
    say(f"{pth_file()} {state}")
    for name in (CONFIG, VENDORS_CONFIG, STEPS):
        say(f"{name}: {os.environ.get(name) or 'not set'}")
    if other := requested_directory(os.environ)[1]:
        say(other)

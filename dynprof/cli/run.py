"""``dynprof run``: start a job that watches a config, without a change to its script."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.options import OnEvent, StepOn, check_on_event, check_step_on
from dynprof.cli.outcome import INVALID, UNREADABLE, fail
from dynprof.errors import LaunchError
from dynprof.journal.event_command import VARIABLE as ON_EVENT
from dynprof.launch.environment import CONFIG, HOOK, STEPS, WATCHED
from dynprof.runtime.permissions import why_not_watched
from dynprof.runtime.rank import ROLE_VARIABLE, role_of
from dynprof.runtime.safe_open import make_dir, why_not_used

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONTEXT_SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": True}
"""Options after the first word that is not an option of ours belong to the job."""
_SCRIPTS = (".py", ".pyc", ".pyz")
"""Suffixes of files that Python runs, also where they are executable."""


def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="[-m MODULE | SCRIPT | PROGRAM] [ARGS]...",
            help="What to run: a script or module with this Python, or a launcher.",
            show_default=False,
        ),
    ],
    config: Annotated[
        Path,
        typer.Option("--config", metavar="DIR", envvar=CONFIG, help="The directory to watch."),
    ] = Path("prof_config"),
    step_on: StepOn = None,
    on_event: OnEvent = None,
    role: Annotated[
        str | None,
        typer.Option(
            "--role",
            metavar="NAME",
            help="Role of these ranks, if jobs of several roles share DIR.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run a job that watches a config, as if its script called dp.init() and dp.step().

    Steps end with those of the optimizer, unless the script calls dp.step() or --step-on names
    another source. Only ranks watch, not launchers, loader workers or other helpers. The job
    replaces this command's process; its arguments, exit code, signals and tracebacks are its own.

    Exit code 1: --step-on names no source of steps, --on-event no program, or --role is invalid.
    2: there is no such script or program, or the directory cannot be read and written. Otherwise
    the job's code.

    Example: dynprof run --config prof_config torchrun --nproc-per-node 2 train.py --lr 0.1
    """
    check_step_on(step_on)
    _check_role(role)
    at_events = check_on_event(on_event)
    try:
        script = next((word for word in command if word.endswith(".py")), "")
        if why := why_not_watched(config.expanduser(), script and str(Path(script).absolute())):
            fail(f"{why}; nothing was started", UNREADABLE)
        make_dir(config.expanduser())
        if why := why_not_used(config.expanduser()):
            fail(f"{why}; nothing was started", UNREADABLE)
        called = command_line(command)
    except LaunchError as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        fail(f"{config} cannot be used: {error.strerror}; nothing was started", UNREADABLE)
    if sys.stdout:  # not closed
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; the job must not
        signal.signal(number, signal.SIG_DFL)
    started_with = environment(os.environ, config, step_on, role, at_events)
    try:
        os.execve(called[0], called, started_with)  # noqa: S606
    except OSError as error:
        fail(f"{called[0]} cannot be run: {error.strerror}", UNREADABLE)


def _check_role(role: str | None) -> None:
    try:
        role_of(role)
    except ValueError as error:
        fail(str(error).replace("role=", "--role ", 1), INVALID)


def command_line(typed: Sequence[str]) -> list[str]:
    """Return what to execute: a script or ``-m module`` with this Python, else a program.

    Args:
        typed: The arguments after the options of ``dynprof run``.

    Raises:
        LaunchError: There is no such script or program.
    """
    first = typed[0]
    if first == "-m":
        if len(typed) < 2:
            raise LaunchError("-m needs the name of a module")
        return [sys.executable, *typed]
    file = Path(first)
    is_script = file.is_file() and (file.suffix in _SCRIPTS or not _is_program(file))
    if is_script or (file / "__main__.py").is_file():
        return [sys.executable, *typed]
    installed = Path(sys.executable).parent / first
    program = shutil.which(first) or (str(installed) if _is_program(installed) else None)
    if program is None:
        what = "script" if first.endswith(".py") else "script, and no program on PATH"
        raise LaunchError(f"{first}: there is no such {what}")
    return [program, *typed[1:]]


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def environment(
    environ: Mapping[str, str],
    directory: Path,
    steps: str | None,
    role: str | None = None,
    on_event: Sequence[str] = (),
) -> dict[str, str]:
    """Return the environment in which the ranks of a command watch a directory.

    They also watch if a watched process started the command, because the user requested it.

    Args:
        environ: The current environment.
        directory: The directory of the config.
        steps: What ends the steps; None: the script, else the optimizer.
        role: The role of the ranks; None: as in the current environment.
        on_event: The command for events; empty: as in the current environment.
    """
    path = [str(HOOK), *filter(None, [environ.get("PYTHONPATH", "")])]
    asked = {CONFIG: str(directory.expanduser().absolute()), "PYTHONPATH": os.pathsep.join(path)}
    rest = {name: value for name, value in environ.items() if name != WATCHED}
    if steps:
        asked[STEPS] = steps
    if role is not None:
        asked[ROLE_VARIABLE] = role
    if on_event:
        asked[ON_EVENT] = shlex.join(on_event)
    return {**rest, **asked}

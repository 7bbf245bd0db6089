"""What ``dynprof run`` starts: the given command, in an environment that makes ranks watch."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import LaunchError
from dynprof.launch.variables import CONFIG, STEPS, WATCHED
from dynprof.runtime.rank import ROLE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SCRIPTS = (".py", ".pyc", ".pyz")
HOOK = Path(__file__).parent / "interpreter_hook"
"""Folder for ``PYTHONPATH`` that makes interpreters start a session."""


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
    environ: Mapping[str, str], directory: Path, steps: str | None, role: str | None = None
) -> dict[str, str]:
    """Return the environment in which the ranks of a command watch a directory.

    They also watch if a watched process started the command, because the user requested it.

    Args:
        environ: The current environment.
        directory: The directory of the config.
        steps: What ends the steps; None: the script, else the optimizer.
        role: The role of the ranks; None: as in the current environment.
    """
    path = [str(HOOK), *filter(None, [environ.get("PYTHONPATH", "")])]
    asked = {CONFIG: str(directory.expanduser().absolute()), "PYTHONPATH": os.pathsep.join(path)}
    rest = {name: value for name, value in environ.items() if name != WATCHED}
    if steps:
        asked[STEPS] = steps
    if role is not None:
        asked[ROLE_VARIABLE] = role
    return {**rest, **asked}

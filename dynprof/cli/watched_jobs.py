"""The watched jobs of this machine, for ``dynprof status`` without a directory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dynprof.cli.config_directory import health, in_json, moment_of, step_of, with_step_age
from dynprof.cli.outcome import NOT_WATCHED, STUCK, fail
from dynprof.cli.terminal_tables import UNLIMITED, Column, console, shortened, table
from dynprof.launch.processes import Candidate, Watched, candidates, watched_processes
from dynprof.runtime import fresh_interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS = (
    Column("pid", 0),
    Column("directory", 1, min_width=16, left=True),
    Column("rank", 3),
    Column("health", 4, left=True),
    Column("step", 2),
    Column("ms/step", 5),
    Column("steps from", 7, min_width=12, left=True),
    Column("command", 6, min_width=16, left=True),
)
MAX_COMMAND_CELLS = 160
"""Maximum cells of a command line, also in a pipe; ``--json`` prints all of it."""
INTERPRETER_SCRIPT = f"/{'/'.join(Path(fresh_interpreter.__file__).parts[-3:])} "
"""End of the path of the script that starts the demo's job."""
OTHERS = (
    Column("pid", 0),
    Column("not watched", 1, min_width=16, left=True),
    Column("attaching", 3, left=True),
    Column("works in", 2, min_width=12, left=True),
)


def show_watched(*, as_json: bool, every: bool) -> None:
    """Print the processes of this user that watch a config; exit if there are none.

    Args:
        as_json: Print JSON.
        every: Include Python processes that watch no config.
    """
    found = watched_processes()
    pids = {one.pid for one in found}
    others = [one for one in candidates() if one.pid not in pids] if every else []
    moment = moment_of([one.status for one in found if one.status])
    if as_json:
        unwatched = {"others": [_other_as_json(one) for one in others]} if every else {}
        plain = {
            "moment": moment,
            "processes": [_as_json(one, moment) for one in found],
            **unwatched,
        }
        typer.echo(json.dumps(plain, indent=2))
    else:
        shown = console()
        if found:
            rows = _with_short_commands((_cells(one, moment) for one in found), shown.width)
            shown.print(table(with_step_age(COLUMNS, moment), rows, shown.width))
        if others:
            rows = _with_short_commands(map(_cells_of_other, others), shown.width, place=1)
            shown.print(table(OTHERS, rows, shown.width))
    if not found:
        text = "no process of this user on this machine watches a config"
        fail(f"{text}; use dynprof run, or dynprof attach for a running job", NOT_WATCHED)
    stuck = [one.pid for one in found if one.status and health(one.status) == "stuck"]
    if stuck:
        text = f"stuck: process {', '.join(map(str, stuck))}"
        fail(f"{text}; dynprof status {stuck[0]} shows where", STUCK)


def _with_short_commands(rows: Iterable[list[str]], width: int, place: int = -1) -> list[list[str]]:
    """Return rows with shortened commands; on a screen a command begins with its script."""
    found = list(rows)
    for row in found:
        command = short_command(row[place]) if width < UNLIMITED else row[place]
        row[place] = shortened(" ".join(command.split()), MAX_COMMAND_CELLS)
    return found


def short_command(command: str) -> str:
    """Return a command line that begins with the script; files are without their folders."""
    if INTERPRETER_SCRIPT in command:  # the job of the demo: its module and arguments
        return command.rpartition("} ")[2]
    words = command.split()
    if words and re.fullmatch(r"python[\d.]*", Path(words[0]).name):
        del words[0]
    return " ".join(Path(word).name if word.startswith("/") else word for word in words) or command


def _other_as_json(one: Candidate) -> dict[str, Any]:
    told = {"pid": one.pid, "command": one.command, "folder": str(one.folder)}
    return {**told, "why_not": one.why_not}


def _cells_of_other(one: Candidate) -> list[str]:
    return [str(one.pid), one.command, one.why_not or "dynprof attach", str(one.folder)]


def _as_json(one: Watched, moment: float | None) -> dict[str, Any]:
    status = one.status
    said = in_json(status, moment) if status else None
    return {
        "pid": one.pid,
        "command": one.command,
        "directory": str(one.directory),
        "status": said,
    }


def _cells(one: Watched, moment: float | None) -> list[str]:
    status = one.status
    if status is None:
        return [str(one.pid), str(one.directory), "", "unknown", "", "", "", one.command]
    return [
        str(one.pid),
        str(one.directory),
        f"{status.role} {status.rank}".lstrip(),
        health(status),
        f"{step_of(status, moment):,}",
        "" if status.step_ms is None else f"{status.step_ms:.1f}",
        status.steps_from,
        one.command,
    ]

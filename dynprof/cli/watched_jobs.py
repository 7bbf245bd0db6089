"""The watched jobs of this machine, as ``dynprof status`` shows them without a directory."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import typer

from dynprof.cli.config_directory import health
from dynprof.cli.outcome import NOBODY, fail
from dynprof.cli.terminal_tables import Column, console, table
from dynprof.launch.watched_processes import Watched, watched_processes

COLUMNS = (
    Column("pid", 0),
    Column("directory", 1, least=16, left=True),
    Column("rank", 3),
    Column("health", 4, left=True),
    Column("step", 2),
    Column("ms/step", 5),
    Column("steps from", 7, least=12, left=True),
    Column("command", 6, least=16, left=True),
)


def show_watched(*, as_json: bool) -> None:
    """Print the processes of this user that watch a config; fail where there are none."""
    found = watched_processes()
    if as_json:
        typer.echo(json.dumps({"processes": [_plain(one) for one in found]}, indent=2))
    elif found:
        shown = console()
        shown.print(table(COLUMNS, [_cells(one) for one in found], shown.width))
    if not found:
        text = "no process of this user on this machine watches a config; in a job that can be"
        fail(f"{text} started anew, dynprof run does it without a line changed", NOBODY)


def _plain(one: Watched) -> dict[str, Any]:
    status = one.status
    said = {**dataclasses.asdict(status), "health": health(status)} if status else None
    return {
        "pid": one.pid,
        "command": one.command,
        "directory": str(one.directory),
        "status": said,
    }


def _cells(one: Watched) -> list[str]:
    status = one.status
    if status is None:
        return [str(one.pid), str(one.directory), "", "unknown", "", "", "", one.command]
    return [
        str(one.pid),
        str(one.directory),
        str(status.rank),
        health(status),
        f"{status.step:,}",
        "" if status.step_ms is None else f"{status.step_ms:.1f}",
        status.steps_from,
        one.command,
    ]

"""``dynprof mcp``: answer an agent's questions about jobs, over the Model Context Protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynprof.cli.config_directory import run_as_owner
from dynprof.cli.outcome import UNREADABLE, fail
from dynprof.extras import require

Directories = Annotated[
    list[Path],
    typer.Argument(
        help="The directories given to dp.init(), or folders above them.", show_default=False
    ),
]


def mcp(
    directories: Directories,
    allow_arm: Annotated[
        bool,
        typer.Option(
            "--allow-arm", metavar="", help="Offer arm and cancel, which change a job's config."
        ),
    ] = False,
) -> None:
    """Answer an agent's questions about jobs, over the Model Context Protocol on stdio.

    An agent starts this command; docs/agents.md shows how. The tools are jobs, status, history,
    log, slow_steps, dump, captures, report, query, diff and trend. With --allow-arm also arm and
    cancel: the log of the job names the client that asked. It sees files only, as a person
    does, and ends when the agent closes the connection. Exit code 2: there is no such directory.

    Example: dynprof mcp /runs --allow-arm
    """
    require("serve", "dynprof mcp")
    for path in directories:
        if not run_as_owner(path).is_dir():
            fail(f"there is no directory {path}", UNREADABLE)
    from dynprof.fleet.agent_tools import agent_server

    agent_server(directories, allows_arm=allow_arm).run()

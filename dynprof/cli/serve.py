"""``dynprof serve`` and ``dynprof mcp``: a page of many jobs, and answers about them for agents."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import run_as_owner
from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.extras import require

if TYPE_CHECKING:
    from dynprof.fleet.config_form import Setting

TOKEN_BYTES = 32
"""Bytes in a token that is made for one run."""
Directories = Annotated[
    list[Path],
    typer.Argument(
        metavar="DIR...",
        help="The directories given to dp.init(), or folders above them.",
        show_default=False,
    ),
]
AllowArm = Annotated[
    bool,
    typer.Option(
        "--allow-arm", metavar="", help="Offer arm and cancel, which change a job's config."
    ),
]


def serve(
    directories: Directories,
    listen: Annotated[
        str,
        typer.Option(metavar="[HOST:]PORT", help="Where to listen; port 0: any free one."),
    ] = "127.0.0.1:8640",
    token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="A file with the token that a client must show. Required for a --listen that "
            "other machines can reach.",
            show_default=False,
        ),
    ] = None,
    allow_arm: AllowArm = False,
) -> None:
    """Show all jobs on a page: which is unhealthy, and why; until Ctrl-C.

    The page shows health, step, pace and captures of each job, its ranks, requests, log and
    history, and makes reports. It sees files only: no job opens a port. With --allow-arm it also
    requests windows, and the log of the job names who asked. Without --token-file, the printed
    address has a token that is valid until Ctrl-C. Over ssh, forward the port. Exit code 0: ended.
    2: a directory cannot be read, the port is taken, or the token cannot be used.

    Example: dynprof serve /runs --listen 8640
    """
    require("serve", "dynprof serve")
    _check_directories(directories)
    from dynprof.fleet import listening, page_server

    try:
        listener, token = listening.listening(listen, token_file)
    except ValueError as error:
        fail(str(error), UNREADABLE)
    address = listening.url_of(listener)
    made = token or secrets.token_urlsafe(TOKEN_BYTES)
    say(f"{address}/" if token else f"{address}/login#{made}")
    say("Press Ctrl-C to stop.")
    settings = _settings_of_arm() if allow_arm else []
    host, _ = listening.address(listen)
    page_server.serve(directories, listener, made, host, settings=settings)
    say("")


def mcp(
    directories: Directories,
    allow_arm: AllowArm = False,
) -> None:
    """Answer an agent's questions about jobs, over the Model Context Protocol on stdio.

    An agent starts this command; docs/agents.md shows how. The tools are jobs, status, history,
    log, slow_steps, dump, captures, report, query, diff and trend. With --allow-arm also arm and
    cancel: the log of the job names the client that asked. It sees files only, as a person
    does, and ends when the agent closes the connection, or on Ctrl-C. Exit code 0: ended. 2: there
    is no such directory.

    Example: dynprof mcp /runs --allow-arm
    """
    require("serve", "dynprof mcp")
    _check_directories(directories)
    from dynprof.fleet.agent_tools import serve_agent

    serve_agent(directories, allows_arm=allow_arm)


def _check_directories(paths: list[Path]) -> None:
    """Exit if one of some directories does not exist; run as the owner of each."""
    for path in paths:
        if not run_as_owner(path).is_dir():
            fail(f"there is no directory {path}", UNREADABLE)


def _settings_of_arm() -> list[Setting]:
    """Return the settings of the form."""
    from dynprof.cli.options import settings
    from dynprof.fleet.config_form import Setting

    return [Setting(one.section, one.key, one.kind.__name__, one.panel or "") for one in settings()]

"""``dynprof serve``: a page of many jobs."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import AllowArm, Directories, check_directories
from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.extras import require

if TYPE_CHECKING:
    from dynprof.fleet.config_form import Setting

TOKEN_BYTES = 32
"""Bytes in a token that is made for one run."""


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
    """Show all jobs on a page: which is sick, and why; until Ctrl-C.

    The page shows health, step, pace and captures of each job, its ranks, requests, log and
    history, and makes reports. It sees files only: no job opens a port. With --allow-arm it also
    requests windows, and the log of the job names who asked. Without --token-file, the printed
    address has a token that is valid until Ctrl-C. Over ssh, forward the port. Exit code 0: ended.
    2: a directory cannot be read, the port is taken, or the token cannot be used.

    Example: dynprof serve /runs --listen 8640
    """
    require("serve", "dynprof serve")
    check_directories(directories)
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


def _settings_of_arm() -> list[Setting]:
    """Return the settings of the form."""
    from dynprof.cli.options import settings
    from dynprof.fleet.config_form import Setting

    return [Setting(one.section, one.key, one.kind.__name__, one.panel or "") for one in settings()]

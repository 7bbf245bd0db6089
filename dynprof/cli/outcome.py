"""How a command ends: what it says, and its exit code."""

from __future__ import annotations

from typing import NoReturn

import typer

from dynprof.journal.journal import printable

INVALID, UNREADABLE, NOBODY, UNSERVED, LOST, NOT_ASKED = 1, 2, 3, 4, 5, 6
"""The config cannot be used; no such file; nobody watches; not served; a rank died; none that is
there is asked."""


def say(text: object, *, err: bool = False) -> None:
    """Print lines in which control characters, as they may stand in a file, are escaped."""
    typer.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def fail(text: str, code: int) -> NoReturn:
    """Say why the command ends, and end it."""
    say(text, err=True)
    raise typer.Exit(code)

"""How a command ends: what it says, and its exit code."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from dynprof.journal.journal import printable
from dynprof.runtime.job_files import skipped_below

if TYPE_CHECKING:
    from pathlib import Path

INVALID, UNREADABLE, NOT_WATCHED, NOT_SERVED, RANK_LOST, NOT_ASKED, STUCK = 1, 2, 3, 4, 5, 6, 7
"""The config cannot be used; no such file; nobody watches; not served; a rank died; none that is
there is asked; a rank is stuck."""
MAX_SKIPPED = 8
"""Files that are named of those that a command skips: another user may plant any number."""


def say(text: object, *, err: bool = False) -> None:
    """Print lines in which control characters, as they may stand in a file, are escaped."""
    typer.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def say_skipped(folder: Path) -> None:
    """Name on stderr what of a folder a command does not read, and why."""
    found = skipped_below(folder)
    for words in found[:MAX_SKIPPED]:
        say(f"skipped: {printable(words)}", err=True)
    if more := len(found[MAX_SKIPPED:]):
        say(f"skipped: and {more:,} more", err=True)


def fail(text: str, code: int) -> NoReturn:
    """Say why the command ends, and end it."""
    say(text, err=True)
    raise typer.Exit(code)

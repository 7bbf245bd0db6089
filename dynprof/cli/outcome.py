"""Output and exit codes of the commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import typer

from dynprof.errors import with_paths
from dynprof.journal.journal import printable
from dynprof.runtime.job_files import skipped_below

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

INVALID, UNREADABLE, NOT_WATCHED, NOT_SERVED, RANK_LOST, NOT_ASKED, STUCK = 1, 2, 3, 4, 5, 6, 7
SLOWER = 8
"""Exit codes 1 to 8. 1: the config is invalid; 2: a file is missing or unreadable; 3: no process
watches. 4: the request was not served; 5: a rank died; 6: no running rank was asked. 7: a rank is
stuck. 8: a step takes longer than ``--fail-over`` allows."""
MAX_SKIPPED = 8
"""Maximum number of skipped files that are printed: another user may create any number."""


def say(text: object, *, err: bool = False) -> None:
    """Print lines; control characters, which may come from a file, are escaped."""
    typer.echo("\n".join(map(printable, str(text).split("\n"))), err=err)


def say_skipped(folder: Path) -> None:
    """Print to stderr which files of a folder a command skips, and why."""
    found = skipped_below(folder)
    for words in found[:MAX_SKIPPED]:
        say(f"skipped: {printable(words)}", err=True)
    if more := len(found[MAX_SKIPPED:]):
        say(f"skipped: and {more:,} more", err=True)


def open_page(address: str) -> None:
    """Open a page in the browser of the user who runs the command.

    Say so if there is no browser, as in a command that root runs as a user.
    """
    import webbrowser

    if not webbrowser.open(address):
        say("no browser can be opened here", err=True)


def fail(text: str, code: int) -> NoReturn:
    """Print an error message and exit with a code."""
    say(text, err=True)
    raise typer.Exit(code)


def fail_for(problems: Mapping[Path, str], code: int) -> NoReturn:
    """Print why traces cannot be read, and exit with a code."""
    fail("\n".join(with_paths(problems)), code)

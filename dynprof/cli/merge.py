"""``dynprof merge DIR``: one trace of all ranks of a window, on one clock."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynprof.cli.captures_elsewhere import newest_window, say_if_elsewhere
from dynprof.cli.config_directory import Captures
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.terminal_tables import progress_bar
from dynprof.errors import CaptureError, why_not_written


def merge(
    path: Captures,
    ranks: Annotated[
        str,
        typer.Option(help="Such as slowest,median,0-3; else all.", show_default=False),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option(help="The file or folder to write to; else analysis/ beside the traces."),
    ] = None,
) -> None:
    """Write one trace of the ranks of the newest window, for Perfetto.

    The clocks of several hosts are aligned by the ends of the collectives that their ranks share;
    arrows lead from who came first to who came last, and the steps of all ranks lie below each
    other. The path is printed; dynprof view opens it. Exit code 0: written; 1: written, but a rank
    cannot be read; 2: there are no two ranks, or it cannot be written.

    Example: dynprof merge prof_config --ranks slowest,median
    """
    from dynprof.analysis.runs.merge import merge as merged

    say_if_elsewhere(path)
    try:
        path = newest_window(path)
        with progress_bar("merging"):
            made = merged(path, ranks, output)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        hint = "" if output else "; --output names another place"
        fail(f"{why_not_written(error)}{hint}", UNREADABLE)
    say(made.path)
    for line in made.words:
        say(line, err=True)
    if made.problems:
        fail("\n".join(f"{trace}: {why}" for trace, why in made.problems.items()), INVALID)

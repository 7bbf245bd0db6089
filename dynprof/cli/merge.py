"""``dynprof merge DIR``: merge all ranks of a window into one trace, on one clock."""

from __future__ import annotations

from typing import Annotated

import typer

from dynprof.cli.config_directory import Captures, default_output, say_if_elsewhere, window_to_read
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, fail_for, say
from dynprof.cli.terminal_tables import progress_bar
from dynprof.errors import CaptureError, why_not_written


def merge(
    context: typer.Context,
    path: Captures,
    ranks: Annotated[
        str,
        typer.Option(
            help="Ranks to merge, such as slowest,median,0-3; default: all.", show_default=False
        ),
    ] = "",
    output: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Output file or folder/; default: analysis/ next to the traces, ./ for a URL.",
        ),
    ] = None,
    critical_path: Annotated[
        bool,
        typer.Option(
            "--critical-path", metavar="", help="Draw the critical path of each rank above it."
        ),
    ] = False,
) -> None:
    """Merge the ranks of the newest window into one trace, for Perfetto.

    The clocks of several hosts are aligned by the ends of the collectives that their ranks share.
    Arrows lead from the rank that arrives first to the one that arrives last. The steps of all
    ranks are shown below each other. The path is printed; dynprof view opens it. Exit code 0:
    written. 1: written, but a rank cannot be read. 2: there are fewer than two ranks, or it cannot
    be written.

    Example: dynprof merge prof_config --ranks slowest,median
    """
    from dynprof.analysis.runs.merge import merge as merged

    output = output or default_output(context)
    say_if_elsewhere(path)
    try:
        path = window_to_read(path)
        with progress_bar("merging"):
            made = merged(path, ranks, output, with_path=critical_path)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        hint = "" if output else "; give another place with --output"
        fail(f"{why_not_written(error)}{hint}", UNREADABLE)
    say(made.path)
    for line in made.words:
        say(line, err=True)
    if made.problems:
        fail_for(made.problems, INVALID)

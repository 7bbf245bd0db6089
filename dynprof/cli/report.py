"""``dynprof report PATH``: an HTML page that shows where the time goes."""

from __future__ import annotations

from typing import Annotated

import typer

from dynprof.cli.config_directory import Captures, default_output, say_if_elsewhere, window_to_read
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, fail_for, open_page, say
from dynprof.cli.terminal_tables import progress_bar
from dynprof.errors import CaptureError, why_not_written


def report(
    context: typer.Context,
    path: Captures,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Output file or folder/; default: analysis/ next to the trace, ./ for a URL.",
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(metavar="", help="Open it in a browser.")] = False,
) -> None:
    """Write an HTML page about a capture: where the time goes and what to try.

    For a folder, the newest window with captures is used. If it has several ranks, they are
    compared, and the page shows the rank that keeps the others waiting. The page is one file and
    needs no network. Verdict and findings are printed; the last line is the path of the page. Exit
    code 0: written. 1: written, but a rank cannot be read. 2: there is no capture, or it cannot be
    read.

    Example: dynprof report prof_config --browser
    """
    from dynprof.analysis.runs.window_report import report_on

    output = output or default_output(context)
    say_if_elsewhere(path)
    try:
        path = window_to_read(path)
        with progress_bar("reading"):
            made = report_on(path, output)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        hint = "" if output else "; give another place with --output"
        fail(f"{why_not_written(error)}{hint}", UNREADABLE)
    say("\n".join(filter(None, [made.window, *made.words])))
    for finding in made.findings:
        say(f"\n{finding}")
    say(f"\n{made.path}")
    if browser:
        open_page(made.path.absolute().as_uri())
    if made.problems:
        fail_for(made.problems, INVALID)

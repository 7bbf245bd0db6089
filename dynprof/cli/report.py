"""``dynprof report`` and ``dynprof merge``: a page about a window, and one trace of its ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
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
    with _of_window(path, output, "reading") as window:
        made = report_on(window, output)
    say("\n".join(filter(None, [made.window, *made.words])))
    for finding in made.findings:
        say(f"\n{finding}")
    say(f"\n{made.path}")
    if browser:
        open_page(made.path.absolute().as_uri())
    if made.problems:
        fail_for(made.problems, INVALID)


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
    with _of_window(path, output, "merging") as window:
        made = merged(window, ranks, output, with_path=critical_path)
    say(made.path)
    for line in made.words:
        say(line, err=True)
    if made.problems:
        fail_for(made.problems, INVALID)


@contextlib.contextmanager
def _of_window(path: Path, output: str | None, work: str) -> Iterator[Path]:
    """Yield the window to read, with a progress bar; exit if the body cannot read or write."""
    say_if_elsewhere(path)
    try:
        window = window_to_read(path)
        with progress_bar(work):
            yield window
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        hint = "" if output else "; give another place with --output"
        fail(f"{why_not_written(error)}{hint}", UNREADABLE)

"""``dynprof report PATH``: a page that says where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dynprof.cli.browser import open_page
from dynprof.cli.captures_elsewhere import newest_window, say_if_elsewhere
from dynprof.cli.config_directory import Captures
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.terminal_tables import progress_bar
from dynprof.errors import CaptureError, why_not_written


def report(
    path: Captures,
    output: Annotated[
        Path | None,
        typer.Option(help="The file or folder to write to; else analysis/ beside the trace."),
    ] = None,
    browser: Annotated[bool, typer.Option(metavar="", help="Open it.")] = False,
) -> None:
    """Write one page about a capture: where a step goes, what to try, and all behind it.

    Of a folder the newest window that has captures is taken; where that has several ranks, they are
    compared, and the page is about the one that keeps the others waiting. It needs no network, and
    can be sent to anybody. The path is printed. Exit code 0: written; 1: written, but a rank cannot
    be read; 2: there is no capture, or it cannot be read.

    Example: dynprof report prof_config --browser
    """
    from dynprof.analysis.runs.window_report import report_on

    say_if_elsewhere(path)
    try:
        path = newest_window(path)
        with progress_bar("reading"):
            made = report_on(path, output)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        hint = "" if output else "; --output names another place"
        fail(f"{why_not_written(error)}{hint}", UNREADABLE)
    say(made.path)
    for line in made.words:
        say(line, err=True)
    if browser:
        open_page(made.path.absolute().as_uri())
    if made.problems:
        fail("\n".join(f"{trace}: {why}" for trace, why in made.problems.items()), INVALID)

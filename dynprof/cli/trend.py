"""``dynprof trend DIR``: show how a step changed over the baselines that a job keeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import Captures, say_if_elsewhere
from dynprof.cli.history import BARS
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import UNREADABLE, fail, open_page, say
from dynprof.cli.terminal_tables import Column, console, progress_bar, table, wrapped
from dynprof.errors import CaptureError, why_not_written
from dynprof.runtime.plural import counted, sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.analysis.measures.difference import Series
    from dynprof.analysis.runs.trend import Trend

COLUMNS = (
    Column("what", 0, min_width=18, left=True),
    Column("by", 5, left=True),
    Column("median ms", 3),
    Column("newest ms", 2),
    Column("trend", 1, left=True),
    Column("changed", 4, left=True),
)
MAX_BARS = 40
"""Characters of a sparkline, at most: as many fit next to the other columns of 100 cells."""


def trend(
    path: Captures,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Also write an HTML page to this file.", show_default=False
        ),
    ] = None,
    browser: Annotated[
        bool, typer.Option(metavar="", help="Open the page in a browser; needs --output.")
    ] = False,
    rank: Annotated[
        int | None,
        typer.Option(
            parser=at_least(0),
            metavar="N",
            help="The rank. Default: the lowest one with baselines.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show how the time of a step changed over the baselines that a job keeps, and when.

    Baselines are recorded with dynprof arm DIR --every 30m. A job keeps the newest 20; arm --keep
    changes that, and dynprof history has the step time of the whole job. Compared are the pace of
    steps, their parts and phases, and the operators and kernels with the most time. A quantity has
    changed if its medians before and after differ by more than its variation and by 5%. Exit code
    0: printed. 2: there are no baselines, or they cannot be read.

    Example: dynprof trend prof_config --output trend.html
    """
    from dynprof.analysis.runs.trend import read_trend

    if browser and output is None:
        raise typer.BadParameter("--browser needs --output, the file to write")
    say_if_elsewhere(path)
    try:
        with progress_bar("reading") as advance:
            found = read_trend(path, rank, advance)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    _show(found)
    if output:
        _write_page(found, output, browser=browser)


def _show(found: Trend) -> None:
    shown = console()
    others = f"; {counted(found.others, 'other rank')}, see --rank" if found.others else ""
    first, last = found.labels[0], found.labels[-1]
    title = f"{found.rank}: {counted(len(found.baselines), 'baseline')}, {first} to {last}{others}"
    shown.print(wrapped(title, shown.width, style="italic"))
    rows = [_cells(found, one) for one in found.series]
    styles = ["bold" if one.changes else "" for one in found.series]
    shown.print(table(COLUMNS, rows, shown.width, styles))
    for text in found.sentences():
        say(sentence(text))
    for text in found.left_out:
        say(f"not compared: {text}", err=True)


def _cells(found: Trend, measured: Series) -> list[str]:
    changed = ", ".join(
        f"{found.labels[one.first]}: {one.before_ns / 1e6:,.4g} to {one.after_ns / 1e6:,.4g}"
        for one in measured.changes
    )
    numbers = (f"{value / 1e6:,.4g}" for value in (measured.median, measured.values[-1]))
    line = sparkline(measured.values[-MAX_BARS:])
    return [measured.name, measured.by, *numbers, line, changed]


def sparkline(values: Sequence[float]) -> str:
    """Return a character for each value; the scale begins at 0, so that noise looks small."""
    most = max(values) or 1.0
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in values)


def _write_page(found: Trend, output: str, *, browser: bool) -> None:
    from dynprof.analysis.runs.trend import write_trend
    from dynprof.analysis.vendor_files.json_files import output_file

    try:
        path = output_file(output, Path(), "trend.html")
        write_trend(found, path)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        fail(why_not_written(error), UNREADABLE)
    say(path, err=True)
    if browser:
        open_page(path.absolute().as_uri())

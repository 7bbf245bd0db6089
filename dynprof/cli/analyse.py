"""``dynprof analyse PATH`` and ``dynprof top PATH``: from captures to tables."""

from __future__ import annotations

import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer

from dynprof.cli.places import INVALID, UNREADABLE, fail, say
from dynprof.errors import CaptureError

Captures = Annotated[Path, typer.Argument(help="A trace, or a folder with captures in it.")]
QUIET_S = 1.0
"""A progress bar comes after this long."""


class ExportType(str, Enum):
    """The form of the tables."""

    text = "text"
    db = "db"


class SortBy(str, Enum):
    """What the rows are sorted by, the largest first."""

    own = "own"
    total = "total"
    number = "count"
    device = "device"


def analyse(
    path: Captures,
    export_type: Annotated[
        Optional[list[ExportType]],  # noqa: UP045 - typer on Python 3.10
        typer.Option(help="The form of the tables; twice for both. Else as the config asks."),
    ] = None,
    processes: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="How many at most; else one for each processor."),
    ] = None,
) -> None:
    """Make tables, a database, folded stacks and memory timelines from captures.

    They lie in analysis/ beside each trace; the paths are printed. Exit code 0: all were made;
    1: a capture cannot be read, the others were analysed; 2: there is no capture.

    Example: dynprof analyse prof_config --export-type text --export-type db
    """
    from rich.progress import Progress

    from dynprof.analysis.captures import traces_in
    from dynprof.analysis.many import analyse_each

    try:
        traces = traces_in(path)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    types = [kind.value for kind in export_type] if export_type else None
    began_s = time.monotonic()
    with Progress(transient=True) as progress:
        bar = progress.add_task("analysing", total=len(traces), visible=False)

        def advance(_: Path) -> None:
            progress.update(bar, advance=1, visible=time.monotonic() - began_s > QUIET_S)

        outcome = analyse_each(traces, types, processes=processes, on_end=advance)
    for made in sorted(outcome.made):
        say(made)
    for folder, verdicts in outcome.verdicts.items():
        for verdict in verdicts or ["no rank keeps the others waiting"]:
            say(f"{folder}: {verdict}", err=True)
    for trace, torn in outcome.torn.items():
        say(f"{trace}: {torn}; what there is was analysed", err=True)
    if outcome.problems:
        fail("\n".join(f"{trace}: {why}" for trace, why in outcome.problems.items()), INVALID)


def top(
    path: Captures,
    limit: Annotated[int, typer.Option(min=1, help="How many rows.")] = 20,
    sort: Annotated[SortBy, typer.Option(help="What the rows are sorted by.")] = SortBy.own,
) -> None:
    """Print the operators of a capture, those with the most time of their own first.

    Of a folder with several captures the newest is taken. Exit code 0: printed; 2: there is no
    capture, or it cannot be read.

    Example: dynprof top prof_config --sort device
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from dynprof.analysis.capture import Capture
    from dynprof.analysis.captures import newest_in
    from dynprof.analysis.operators import averages
    from dynprof.journal import printable

    try:
        trace = newest_in(path)
        capture = Capture(trace)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    key = {"own": "own", "total": "total", "count": "count", "device": "device_own"}[sort.value]
    rows = averages(capture.trace, capture.operators)
    everything = sum(row.own for row in rows) or 1
    rows = sorted(rows, key=lambda row: -getattr(row, key))[:limit]
    table = Table(title=Text(printable(trace.name)), title_justify="left")
    table.add_column("operator", overflow="fold")
    for head in ("count", "own ms", "own %", "total ms", "device ms"):
        table.add_column(head, justify="right")
    for row in rows:
        shares = (row.own / 1e6, 100 * row.own / everything, row.total / 1e6, row.device_own / 1e6)
        table.add_row(
            Text(printable(row.name)), str(row.count), *(f"{share:,.2f}" for share in shares)
        )
    Console().print(table)
    if capture.trace.torn:
        say(f"{trace}: {capture.trace.torn}", err=True)

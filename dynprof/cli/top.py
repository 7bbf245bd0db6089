"""``dynprof top PATH``: the operators of a capture in the terminal."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from dynprof.cli.places import UNREADABLE, Captures, fail, say
from dynprof.cli.waiting import waiting
from dynprof.errors import CaptureError


class SortBy(str, Enum):
    """What the rows are sorted by, the largest first."""

    own = "own"
    total = "total"
    number = "count"
    device = "device"


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
    from dynprof.journal import printable

    try:
        trace = newest_in(path)
        with waiting("reading"):
            capture = Capture(trace)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    key = {"own": "own", "total": "total", "count": "count", "device": "device_own"}[sort.value]
    rows = capture.work
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

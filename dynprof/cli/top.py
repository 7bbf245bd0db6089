"""``dynprof top PATH``: show the operators of a capture in the terminal."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.config_directory import Captures, say_if_elsewhere, window_to_read
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import UNREADABLE, fail, say
from dynprof.cli.terminal_tables import Column, console, progress_bar, table, wrapped
from dynprof.errors import CaptureError
from dynprof.runtime.plural import counted, listed_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from dynprof.analysis.measures.timeline.operators import Average

MIN_NAME_CELLS = 22
"""Cells to which an operator's name may be shortened; below that a column is dropped."""


class SortBy(StrEnum):
    """Sort key of the rows, the largest first."""

    self_time = "self"
    total = "total"
    number = "count"
    device = "device"


def top(
    path: Captures,
    limit: Annotated[
        int,
        typer.Option(parser=at_least(1), metavar="N", help="Maximum number of rows."),
    ] = 20,
    sort: Annotated[
        SortBy | None,
        typer.Option(
            help="Sort key of the rows; by default device, or self if no device worked.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print the operators of a capture, the one with the most device or self time first.

    For a folder with several captures, the newest is used; of several ranks, the lowest. Columns
    that do not fit the terminal are left out. Exit code 0: printed. 2: there is no capture, or it
    cannot be read.

    Example: dynprof top prof_config --sort self
    """
    from dynprof.analysis.report.contents import unattributed
    from dynprof.analysis.runs.recorded_window import lowest_measured

    say_if_elsewhere(path)
    try:
        path = window_to_read(path)
        with progress_bar("reading"):
            measured, ranks, passed_over = lowest_measured(path)
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    trace = measured.path
    for why in passed_over.values():
        say(f"skipped: {why}", err=True)
    shown = console()
    of = f", rank {measured.rank} of {listed_ranks(ranks)}" if len(ranks) > 1 else ""
    shown.print(wrapped(f"{trace.name}{of}", shown.width, style="italic"))
    if measured.work:
        worked = any(row.device_self_ns for row in measured.work)
        sort = sort or (SortBy.device if worked else SortBy.self_time)
        shown.print(_operators(measured.work, sort, limit, shown.width))
    else:
        marks = len(measured.marks.span)
        where = f"; dynprof report shows {counted(marks, 'mark')}" if marks else ""
        say(f"no operator was recorded{where}")
    without_operator = [words for words in [unattributed(measured)] if words]
    for words in (*without_operator, *measured.truncation.sentences()):
        say(f"{trace}: {words}", err=True)


def _operators(work: list[Average], sort: SortBy, limit: int, width: int) -> Table:
    """Return the table; the sort column is dropped last, device times are shown if any."""
    values: dict[SortBy, Callable[[Average], int]] = {
        SortBy.self_time: lambda row: row.self_ns,
        SortBy.total: lambda row: row.total_ns,
        SortBy.number: lambda row: row.count,
        SortBy.device: lambda row: row.device_self_ns,
    }
    rows = sorted(work, key=lambda row: -values[sort](row))[:limit]
    everything = sum(row.self_ns for row in work) or 1
    columns = [
        Column("operator", 0, min_width=MIN_NAME_CELLS, left=True),
        Column("count", 1 if sort is SortBy.number else 4),
        Column("self ms", 2),
        Column("self %", 5),
        Column("total ms", 1 if sort is SortBy.total else 6),
    ]
    cells = [
        [
            row.name,
            f"{row.count:,}",
            f"{row.self_ns / 1e6:,.2f}",
            f"{100 * row.self_ns / everything:.2f}",
            f"{row.total_ns / 1e6:,.2f}",
        ]
        for row in rows
    ]
    if sort is SortBy.device or any(row.device_self_ns for row in work):
        columns.append(Column("device ms", 1 if sort is SortBy.device else 3))
        for row, texts in zip(rows, cells, strict=True):
            texts.append(f"{row.device_self_ns / 1e6:,.2f}")
    return table(columns, cells, width)

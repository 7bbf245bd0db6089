"""``dynprof diff A B``: compare two captures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.captures_elsewhere import newest_window
from dynprof.cli.config_directory import path_argument
from dynprof.cli.numbers import at_least
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.terminal_tables import (
    UNLIMITED,
    Column,
    console,
    progress_bar,
    table,
    wrapped,
)
from dynprof.errors import CaptureError, describe

if TYPE_CHECKING:
    from dynprof.analysis.measures.difference import Growth

COLUMNS = (
    Column("name", 0, min_width=22, left=True),
    Column("where", 4),
    Column("count 1", 6),
    Column("count 2", 5),
    Column("own ms 1", 3),
    Column("own ms 2", 2),
    Column("change", 1),
)
"""Columns of the table; 1 is the first capture, 2 the second."""

Trace = Annotated[
    Path,
    typer.Argument(
        help="A trace, or a folder, for its newest window.",
        show_default=False,
        callback=path_argument,
    ),
]


def diff(
    first: Trace,
    second: Trace,
    limit: Annotated[
        int,
        typer.Option(
            parser=at_least(1), metavar="N", help="Maximum number of operators and kernels."
        ),
    ] = 20,
) -> None:
    """Compare two captures, windows, ranks or runs: where a step takes more time, or less.

    The parts of a step, such as computing and communication, and the phases of the host come first.
    Then come operators and kernels, by how much a step's time changed. For windows of several
    ranks, the means over their common ranks are compared. Exit code 0: compared. 1: compared, but
    the numbers are not comparable; the reason is printed. 2: there is no capture, or it cannot be
    read.

    Example: dynprof diff prof_config/step_10-14_x prof_config/step_90-94_y
    """
    from dynprof.analysis.measures.difference import (
        growths,
        part_growths,
        phase_growths,
        why_not_comparable,
    )
    from dynprof.analysis.runs.window_difference import compare

    try:
        first, second = newest_window(first), newest_window(second)
        with progress_bar("reading"):
            compared = compare(first, second)
    except (CaptureError, OSError) as error:
        fail(describe(error), UNREADABLE)
    one, other = compared.one, compared.other
    for why in compared.passed_over:
        say(f"skipped: {why}", err=True)
    phases = part_growths(one, other) + phase_growths(one, other)
    rows = growths(one, other)[:limit]
    before, after = one.whole_ns / 1e6, other.whole_ns / 1e6
    shown = console()
    title = f"{before:,.3f} ms in 1, {after:,.3f} ms in 2 ({after - before:+,.3f} ms)"
    shown.print(wrapped(f"{_of(one.a_step, other.a_step)}: {title}", shown.width, style="italic"))
    if phases or rows:
        cells = [_cells(row, narrow=shown.width < UNLIMITED) for row in (*phases, *rows)]
        shown.print(table(COLUMNS, cells, shown.width))
    else:
        say("nothing changed")
    for remark in compared.remarks:
        say(remark, err=True)
    if reasons := why_not_comparable(one, other):
        for reason in reasons:
            say(f"not comparable: {reason}", err=True)
        raise typer.Exit(INVALID)


def _of(*steps: str) -> str:
    """Return what the times refer to; remarks say so if only one trace has marked steps."""
    return " or ".join(sorted(set(steps)))


def _cells(row: Growth, *, narrow: bool) -> list[str]:
    from dynprof.analysis.measures.timeline.kernels import without_templates

    counts = (f"{count:,.0f}" if count >= 1000 else f"{count:.4g}" for count in row.count)
    times = (f"{time / 1e6:,.3f}" for time in row.time_ns)
    name = without_templates(row.name) if narrow and row.where == "device" else row.name
    return [name, row.where, *counts, *times, f"{row.cost_ns / 1e6:+,.3f}"]

"""``dynprof diff A B``: what grew from one capture to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.progress import waiting
from dynprof.cli.terminal_tables import Column, console, sentence, table
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from dynprof.analysis.measures.difference import Growth

COLUMNS = (
    Column("name", 0, least=22, left=True),
    Column("where", 4),
    Column("count 1", 6),
    Column("count 2", 5),
    Column("own ms 1", 3),
    Column("own ms 2", 2),
    Column("change", 1),
)
"""1 is the first capture, 2 the second."""

Trace = Annotated[
    Path, typer.Argument(help="A trace, or a folder: its newest is taken.", show_default=False)
]


def diff(
    first: Trace,
    second: Trace,
    limit: Annotated[int, typer.Option(min=1, help="How many operators and kernels.")] = 20,
) -> None:
    """Compare two captures, windows, ranks or runs: what costs a step more, and what less.

    First the phases of a step, then operators and kernels, by how much a step's time changed. Exit
    code 0: compared; 1: compared, but the numbers do not mean the same, and why; 2: there is no
    capture, or it cannot be read.

    Example: dynprof diff prof_config/step_10-14_x prof_config/step_90-94_y
    """
    from dynprof.analysis.measures.difference import (
        growths,
        phase_growths,
        step_ns,
        why_not_comparable,
    )
    from dynprof.analysis.runs.newest import newest_measured

    try:
        with waiting("reading"):
            (one, passed_over), (other, more) = map(newest_measured, (first, second))
    except CaptureError as error:
        fail(str(error), UNREADABLE)
    for why in {**passed_over, **more}.values():
        say(f"passed over: {why}", err=True)
    phases, rows = phase_growths(one, other), growths(one, other)[:limit]
    before, after = step_ns(one) / 1e6, step_ns(other) / 1e6
    shown = console()
    title = f"a step: {before:,.3f} ms in 1, {after:,.3f} ms in 2 ({after - before:+,.3f} ms)"
    shown.print(sentence(title, shown.width, style="italic"))
    shown.print(table(COLUMNS, [_cells(row) for row in (*phases, *rows)], shown.width))
    for measured in (one, other):
        for words in measured.tear.words():
            say(f"{measured.path}: {words}", err=True)
    if reasons := why_not_comparable(one, other):
        for reason in reasons:
            say(f"not the same: {reason}", err=True)
        raise typer.Exit(INVALID)


def _cells(row: Growth) -> list[str]:
    counts = (f"{count:,.0f}" if count >= 1000 else f"{count:.4g}" for count in row.count)
    times = (f"{time / 1e6:,.3f}" for time in row.time_ns)
    return [row.name, row.where, *counts, *times, f"{row.cost_ns / 1e6:+,.3f}"]

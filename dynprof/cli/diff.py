"""``dynprof diff A B``: what grew from one capture to another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dynprof.cli.kernel_names import brief
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.progress import waiting
from dynprof.cli.terminal_tables import ANY, Column, console, sentence, table
from dynprof.errors import CaptureError

if TYPE_CHECKING:
    from dynprof.analysis.measures.difference import Growth
    from dynprof.analysis.measures.measured_trace import MeasuredTrace

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

    First the parts of a step on the clock, as computing and communication, and the phases of the
    host, then operators and kernels, by how much a step's time changed. Exit
    code 0: compared; 1: compared, but the numbers do not mean the same, and why; 2: there is no
    capture, or it cannot be read.

    Example: dynprof diff prof_config/step_10-14_x prof_config/step_90-94_y
    """
    from dynprof.analysis.measures.difference import (
        growths,
        part_growths,
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
    phases = part_growths(one, other) + phase_growths(one, other)
    rows = growths(one, other)[:limit]
    before, after = step_ns(one) / 1e6, step_ns(other) / 1e6
    shown = console()
    title = f"{before:,.3f} ms in 1, {after:,.3f} ms in 2 ({after - before:+,.3f} ms)"
    shown.print(sentence(f"{_of(one, other)}: {title}", shown.width, style="italic"))
    if phases or rows:
        cells = [_cells(row, narrow=shown.width < ANY) for row in (*phases, *rows)]
        shown.print(table(COLUMNS, cells, shown.width))
    else:
        say("nothing in it changed")
    for remark in _remarks(one, other):
        say(remark, err=True)
    if reasons := why_not_comparable(one, other):
        for reason in reasons:
            say(f"not the same: {reason}", err=True)
        raise typer.Exit(INVALID)


def _remarks(one: MeasuredTrace, other: MeasuredTrace) -> list[str]:
    """Return what is to be known of the two, though their numbers mean the same."""
    found = [f"{each.path}: {words}" for each in (one, other) for words in each.tear.words()]
    first, second = one.device_name, other.device_name
    if first and second and first != second:
        found.append(f"1 ran on {first}, 2 on {second}: kernels may bear other names")
    return found


def _of(one: MeasuredTrace, other: MeasuredTrace) -> str:
    """Return what times are of; where only one trace has marked steps, that is said elsewhere."""
    wholes = {measured.breakdown.a_step for measured in (one, other)}
    return " or ".join(sorted(wholes))


def _cells(row: Growth, *, narrow: bool) -> list[str]:
    counts = (f"{count:,.0f}" if count >= 1000 else f"{count:.4g}" for count in row.count)
    times = (f"{time / 1e6:,.3f}" for time in row.time_ns)
    name = brief(row.name) if narrow and row.where == "device" else row.name
    return [name, row.where, *counts, *times, f"{row.cost_ns / 1e6:+,.3f}"]

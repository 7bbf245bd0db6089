"""``dynprof query PATH SQL``: answer a SQL statement over captures."""

from __future__ import annotations

import json
import math
import sys
from decimal import Decimal
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynprof.cli.config_directory import Captures, newest_window, say_if_elsewhere
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, say
from dynprof.cli.terminal_tables import Column, console, progress_bar, table
from dynprof.errors import CaptureError, QueryError, describe
from dynprof.journal.journal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

MAX_ROWS = 1000
"""Maximum rows of a table: all of them must be known to align its columns."""
MIN_TEXT_CELLS = 12
"""Cells to which a text may be shortened; below that a column is dropped."""


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    csv = "csv"
    json = "json"


def query(
    path: Captures,
    sql: Annotated[
        str,
        typer.Argument(
            help="A statement; - for standard input; or a file that ends with .sql.",
            show_default=False,
        ),
    ],
    form: Annotated[Format, typer.Option("--format", help="How to print the rows.")] = Format.table,
    every: Annotated[
        bool, typer.Option("--all", metavar="", help="Read all windows below, not the newest.")
    ] = False,
) -> None:
    """Answer a SQL statement over captures: operators, kernels, steps, memory, ranks.

    The views are events, operators, kernels, launches, idle, memory, collectives, steps, ranks and
    windows; docs/query.md lists their columns. For a folder, the newest window with captures is
    used. The statement can read nothing else. Exit code 0: printed. 1: printed, but a rank cannot
    be read. 2: there is no capture, it cannot be read, or the statement is wrong.

    Example: dynprof query prof_config "SELECT name, sum(own_ns) FROM operators GROUP BY name"
    """
    from dynprof.analysis.runs.query import load, named_views

    try:
        text = _statement(sql)
        say_if_elsewhere(path)
        window = newest_window(path)
        with progress_bar("reading"):
            views = load(path if every else window, all_windows=every, views=named_views(text))
            columns, rows = views.query(text).read()
    except (CaptureError, QueryError, UnicodeDecodeError) as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        fail(describe(error), UNREADABLE)
    try:
        _print(form, columns, rows)
    except QueryError as error:  # found only when a later row was computed
        fail(str(error), UNREADABLE)
    for words in views.words:
        say(words, err=True)
    if views.problems:
        fail("\n".join(f"{trace}: {why}" for trace, why in views.problems.items()), INVALID)


def _statement(sql: str) -> str:
    """Return the statement that an argument gives, from standard input or a file if it says so."""
    if sql == "-":
        return sys.stdin.read()
    return Path(sql).read_text(encoding="utf-8") if sql.endswith(".sql") else sql


def _print(form: Format, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    if form is Format.json:
        _print_json(columns, rows)
    elif form is Format.csv:
        from dynprof.analysis.output.tables import cell

        for row in (columns, *rows):
            typer.echo(",".join(cell(printable(_text(value))) for value in row))
    else:
        _print_table(columns, rows)


def _print_json(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
    """Print a list with an object for each row, one a line."""
    between = "["
    for row in rows:
        values = {name: _number(value) for name, value in zip(columns, row, strict=True)}
        typer.echo(f"{between}{json.dumps(values, default=str)}", nl=False)
        between = ",\n"
    typer.echo("[]" if between == "[" else "]")


def _number(value: Any) -> Any:
    """Return a value for JSON, which has no decimals, no infinity and no NaN."""
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    return value


def _print_table(columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> None:
    shown = list(islice(rows, MAX_ROWS))
    screen = console()
    screen.print(_table(columns, shown, screen.width))
    if len(shown) == MAX_ROWS and next(rows, None):
        say(f"only the first {MAX_ROWS:,} rows are shown; --format csv prints all", err=True)


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]], width: int) -> Table:
    """Return the table; if the terminal is too narrow, the last columns are dropped."""
    texts = [any(isinstance(row[place], str) for row in rows) for place in range(len(names))]
    columns = [
        Column(name, place, min_width=MIN_TEXT_CELLS * is_text, left=is_text)
        for place, (name, is_text) in enumerate(zip(names, texts, strict=True))
    ]
    return table(columns, [[_text(value, short=True) for value in row] for row in rows], width)


def _text(value: Any, *, short: bool = False) -> str:
    """Return a value as text; empty for NULL.

    Args:
        value: The value.
        short: Whether a fraction is rounded.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if short and isinstance(value, float | Decimal):
        return f"{value:,.3f}" if not value or abs(float(value)) >= 0.001 else f"{value:.3g}"
    return str(value)

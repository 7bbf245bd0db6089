"""``dynprof query PATH SQL``: answer a SQL statement over captures."""

from __future__ import annotations

import json
import math
import os
import sys
from decimal import Decimal
from enum import StrEnum
from itertools import count as count_from
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dynprof.cli.config_directory import captures_argument, say_if_elsewhere, window_to_read
from dynprof.cli.outcome import INVALID, UNREADABLE, fail, fail_for, say
from dynprof.cli.terminal_tables import Column, console, progress_bar, shortened, table
from dynprof.errors import CaptureError, QueryError, describe
from dynprof.journal.journal import printable
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.table import Table

MAX_ROWS = 1000
"""Maximum rows of a table: all of them must be known to align its columns."""
MAX_TEXT_CELLS = 120
"""Cells to which a text is shortened also where no terminal limits the width: stacks are long."""
MIN_TEXT_CELLS = 12
"""Cells to which a text may be shortened; below that a column is dropped."""


class Format(StrEnum):
    """How rows are printed."""

    table = "table"
    csv = "csv"
    json = "json"


def _captures_arguments(context: typer.Context, paths: list[Path] | None) -> list[Path]:
    return [captures_argument(context, path) for path in paths or []]


def query(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="A trace, a folder with captures, or the ID of a process that watches one. "
            "Several: to compare them, the newest last.",
            show_default=False,
            callback=_captures_arguments,
        ),
    ] = None,
    sql: Annotated[
        str,
        typer.Argument(
            metavar="SQL",
            help="A statement; - for standard input; or a file that ends with .sql.",
            show_default=False,
        ),
    ] = "",
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

    Example: dynprof query prof_config "SELECT name, sum(self_ns) FROM operators GROUP BY name"
    """
    from dynprof.analysis.runs.query import load, named_views

    try:
        text = _statement(sql, paths or [])
        for path in paths or []:
            say_if_elsewhere(path)
        windows = [window_to_read(path) for path in paths or []]
        with progress_bar("reading"):
            read = paths or [] if every else windows
            views = load(*read, all_windows=every, views=named_views(text))
            columns, rows = views.query(text).read()
    except (CaptureError, QueryError, UnicodeDecodeError) as error:
        fail(str(error), UNREADABLE)
    except OSError as error:
        fail(describe(error), UNREADABLE)
    try:
        count = _print(form, columns, rows)
    except QueryError as error:  # found only when a later row was computed
        fail(str(error), UNREADABLE)
    for words in (*views.words, *([] if count else ["no row matches"])):
        say(words, err=True)
    if views.problems:
        fail_for(views.problems, INVALID)


def _statement(sql: str, paths: Sequence[Path]) -> str:
    """Return the statement that an argument gives, from standard input or a file if it says so.

    Raises:
        QueryError: There is none, or no path before it.
    """
    from dynprof.analysis.sql_views import VIEWS

    is_path = os.path.lexists(sql) and not sql.endswith(".sql")  # the statement was forgotten
    if not paths or not sql.strip() or is_path:
        text = f'write dynprof query PATH "SELECT ..."; the views are {", ".join(VIEWS)}'
        raise QueryError(f"a path or a statement is missing; {text}")
    if sql == "-":
        return sys.stdin.read()
    return Path(sql).read_text(encoding="utf-8") if sql.endswith(".sql") else sql


def _print(form: Format, columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> int:
    """Print the rows, and return their number."""
    if form is Format.json:
        return _print_json(columns, rows)
    if form is Format.table:
        return _print_table(columns, rows)
    from dynprof.analysis.vendor_files.tables import cell

    count = -1
    for count, row in enumerate((columns, *rows)):  # noqa: B007 - the last number counts
        typer.echo(",".join(cell(printable(_text(value))) for value in row))
    return count


def _print_json(columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> int:
    """Print a list with an object for each row, one a line."""
    between, count, keys = "[", 0, _distinct(columns)
    for row in rows:
        values = {key: _number(value) for key, value in zip(keys, row, strict=True)}
        typer.echo(f"{between}{json.dumps(values, default=str)}", nl=False)
        between, count = ",\n", count + 1
    typer.echo("]" if count else "[]")
    return count


def _distinct(columns: Sequence[str]) -> list[str]:
    """Return keys for an object; equal names get a number, as of a join of two views."""
    keys: list[str] = []
    for name in columns:
        later = (f"{name}_{number}" for number in count_from(1))
        keys.append(name if name not in keys else next(key for key in later if key not in keys))
    return keys


def _number(value: Any) -> Any:
    """Return a value for JSON, which has no decimals, no infinity and no NaN."""
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    return value


def _print_table(columns: Sequence[str], rows: Iterator[tuple[Any, ...]]) -> int:
    """Print at most :data:`MAX_ROWS`; what is left out is named on standard error."""
    shown = list(islice(rows, MAX_ROWS))
    screen = console()
    made = _table(columns, shown, screen.width)
    screen.print(made)
    if hidden := len(columns) - len(made.columns):
        names = ", ".join(columns[-hidden:])
        text = f"{counted(hidden, 'column')} left out, as the terminal is too narrow"
        say(f"{text}: {names}; --format csv prints all", err=True)
    if len(shown) == MAX_ROWS and next(rows, None):
        say(f"only the first {MAX_ROWS:,} rows are shown; --format csv prints all", err=True)
    return len(shown)


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]], width: int) -> Table:
    """Return the table; if the terminal is too narrow, the last columns are dropped."""
    texts = [any(isinstance(row[place], str) for row in rows) for place in range(len(names))]
    columns = [
        Column(name, place, min_width=MIN_TEXT_CELLS * is_text, left=is_text)
        for place, (name, is_text) in enumerate(zip(names, texts, strict=True))
    ]
    cells = [[shortened(_text(value, short=True), MAX_TEXT_CELLS) for value in row] for row in rows]
    return table(columns, cells, width)


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

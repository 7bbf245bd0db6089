"""SQL over captures: the views of a trace, of a window, or of all windows below a path."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynprof.analysis.rank_comparison import parquet
from dynprof.analysis.rank_comparison.comparison import Ranks, checked_names, patterns
from dynprof.analysis.runs.many_traces import analyse_each, oldest_first
from dynprof.analysis.runs.one_trace import RANK, folder_of, view_part
from dynprof.analysis.runs.recorded_window import (
    captured_below,
    newest_window,
    window_below,
    window_folder,
    window_words,
)
from dynprof.analysis.sql_views import (
    COLLECTIVES,
    EVENTS,
    STEPS,
    TRACE_VIEWS,
    VIEWS,
    WINDOWS,
    view_file,
)
from dynprof.errors import CaptureError, QueryError, describe, with_paths
from dynprof.runtime.layout import WINDOW_RECORD
from dynprof.runtime.plural import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from duckdb import DuckDBPyConnection

_AT_ONCE = 1000
"""Rows that are fetched at once."""
_PHASES = (
    "data_loading_ns, forward_ns, backward_ns, recomputation_ns, optimizer_ns, checkpoint_ns, "
    "rest_ns"
)
_ON_DEVICE = (
    "nullif(took_ns, -1) AS took_ns, recording_ns, device, computing_ns, communication_ns, "
    "overlapped_ns, free_ns, stage_ns, preparing_ns"
)
_TIMES = """
    make_timestamp(start_ns // 1000) AS start,
    make_timestamp((start_ns + duration_ns) // 1000) AS stop
"""
_OF_STEPS = f"""
SELECT rank, nullif(step, -1) AS step, nullif(kind, '') AS kind,
    nullif(requests, -1) AS requests, nullif(tokens, -1) AS tokens,
    begin_ns AS start_ns, length_ns AS duration_ns, {_ON_DEVICE},
    nullif(receiving_ns, -1) AS receiving_ns, {_PHASES}
"""
_OF_COLLECTIVES = """
SELECT rank, nullif(step, -1) AS step, id, begin_ns AS start_ns, end_ns - begin_ns AS duration_ns,
    name, nullif(kind, '') AS kind, "group" AS process_group, place AS number,
    nullif(size, -1) AS bytes, nullif(members, -1) AS members,
    CASE WHEN size > 0 AND factor > 0 THEN size * factor / nullif(end_ns - begin_ns, 0) END
        AS bus_gb_s,
    nullif(sender, -1) AS sender, nullif(receiver, -1) AS receiver, late_ns, is_last
"""
_WINDOWS = """
INSERT INTO windows BY NAME
SELECT window_name, row_number() OVER (ORDER BY any_value(place) DESC, min(start_ns) DESC) AS age,
    min(start) AS start, max(stop) AS stop, min(start_ns) AS start_ns,
    count(DISTINCT rank) AS ranks,
    count(DISTINCT (rank, coalesce(step, -1))) AS rank_steps
FROM steps JOIN places USING (window_name) GROUP BY window_name
"""
_LOCKED = (
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",  # else a name may be a variable of the caller
    "SET lock_configuration = true",
)
STATEMENT_MB = 2000
"""MB (10^6 bytes) of memory for a statement, beyond the views, and as many on disk. DuckDB takes
most of the machine's by default, and a wrong join needs any amount."""
_RANK_TABLES = {STEPS: parquet.STEPS, COLLECTIVES: parquet.COLLECTIVES}
"""The tables of ranks that views are made of, by view."""
_NEWEST_COLUMNS = {parquet.STEPS: "recording_ns", parquet.COLLECTIVES: "id", EVENTS: "step"}
"""By file name, a column that tables of older versions lack."""
_NO_VIEW = re.compile(r"Table with name \S+ does not exist")
_NO_COLUMN = re.compile(r"Referenced (?:column|table) \"|does not have a column named")
_GUESSES = re.compile(r"\n+(?:Candidate bindings|Did you mean)[^\n]*")
_FIRST_WORD = re.compile(r"\s*(\w+)")
_CHANGES = {"alter", "create", "delete", "drop", "insert", "merge", "truncate", "update"}
_OF_OTHER_RANKS = re.compile(r"\b(?:late_ns|is_last)\b", re.IGNORECASE)
"""Columns of ``collectives`` that compare ranks."""
_CANDIDATES = re.compile(r"\n\s*Candidate functions:.*", re.DOTALL)


class Table:
    """The result of a statement, which runs when its rows are read.

    Attributes:
        sql: The statement.
    """

    def __init__(self, database: DuckDBPyConnection, sql: str) -> None:
        self.sql, self._database = sql, database

    def __repr__(self) -> str:
        return str(self.relation())

    @property
    def columns(self) -> list[str]:
        """The names of its columns."""
        return self.read()[0]

    def rows(self) -> list[tuple[Any, ...]]:
        """Return its rows.

        Raises:
            QueryError: The statement is wrong.
        """
        return list(self.read()[1])

    def read(self) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Run the statement; return the names of the columns, and the rows.

        Raises:
            QueryError: The statement is wrong.
        """
        cursor = self._database.cursor()
        with _plain_errors(self.sql):
            cursor.execute(self.sql)
        return [name for name, *_ in cursor.description or []], self._fetched(cursor)

    def _fetched(self, cursor: DuckDBPyConnection) -> Iterator[tuple[Any, ...]]:
        while cursor.description:
            with _plain_errors(self.sql):
                rows = cursor.fetchmany(_AT_ONCE)
            if not rows:
                return
            yield from rows

    def relation(self) -> Any:
        """Return it as a relation of DuckDB.

        Raises:
            QueryError: The statement is wrong.
        """
        with _plain_errors(self.sql):
            return self._database.sql(self.sql)

    def df(self) -> Any:
        """Return it as a data frame of pandas.

        Raises:
            QueryError: The statement is wrong, or pandas is not installed.
        """
        _need("pandas")
        with _plain_errors(self.sql):
            return self.relation().df()

    def arrow(self) -> Any:
        """Return it as a table of pyarrow.

        Raises:
            QueryError: The statement is wrong, or pyarrow is not installed.
        """
        _need("pyarrow")
        with _plain_errors(self.sql):
            return self.relation().to_arrow_table()


def _need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise QueryError(f"this needs {package}; install it with: pip install {package}")


class Views:
    """The views of one window or of several, computed when a statement names them.

    Each view is an attribute too, such as ``views.operators``.

    Args:
        views: The views that statements will name, to read each trace only once.

    Attributes:
        problems: The reason why a trace could not be read, by its path.
        words: Sentences on what is missing in the windows.
    """

    def __init__(self, views: Collection[str] = ()) -> None:
        self.problems: dict[Path, str] = {}
        self.words: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="dynprof-views-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._windows: dict[str, list[Path]] = {}
        self._places: dict[str, int] = {}
        self._unmatched: dict[str, str] = {}
        self._written: set[tuple[Path, str]] = set()
        self._filled = frozenset(views)
        self._database: DuckDBPyConnection | None = None

    def query(self, sql: str) -> Table:
        """Return the result of a SQL statement over the views.

        The statement sees nothing but the views. It runs when the rows are read.

        Raises:
            CaptureError: A trace cannot be read.
            QueryError: There is no statement.
        """
        if not sql.strip():
            raise QueryError(f"there is no statement; the views are {_listed(VIEWS)}")
        if (word := _FIRST_WORD.match(sql)) and word[1].lower() in _CHANGES:
            raise QueryError(f"{word[1]} is not allowed: captures are only read; write a SELECT")
        database = self._with(named_views(sql))
        _check_is_one(database, sql)
        if _OF_OTHER_RANKS.search(sql):
            said = (f"{window}: {text}" for window, text in self._unmatched.items())
            self.words += [words for words in said if words not in self.words]
        return Table(database, sql)

    def __getattr__(self, name: str) -> Table:
        if name not in VIEWS:
            raise AttributeError(f"there is no view {name!r}; the views are {_listed(VIEWS)}")
        return self.query(f"FROM {name}")

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *VIEWS]

    def add(self, name: str, traces: Sequence[Path], place: int = 0) -> bool:
        """Add a window; return whether any of its traces can be read.

        Args:
            name: The name of the window.
            traces: Its traces.
            place: The index of its path among those of the caller, the last of which is the newest.

        Raises:
            CaptureError: Another window has the name.
        """
        if name in self._windows:
            raise CaptureError(f"{name} is given twice")
        self.write(traces)
        ready = oldest_first([trace for trace in traces if trace not in self.problems])
        if not ready:
            return False
        superseded = self._ranks(ready).superseded if len(ready) > 1 else set()
        if superseded:
            self.words.append(
                f"{name}: left out: {counted(len(superseded), 'older capture')} of the same ranks"
            )
        kept = [trace for place, trace in enumerate(ready) if place not in superseded]
        self._windows[name], self._places[name], self._database = kept, place, None
        return True

    def __len__(self) -> int:
        return len(self._windows)

    def write(self, traces: Sequence[Path]) -> None:
        """Write the tables that no run of the analysis has left, into the temporary folder.

        Those of ranks are written if a view is made of them, or if there are several traces.
        """
        parts = [view_part(name) for name in TRACE_VIEWS if name in self._filled]
        if not parts or len(traces) > 1 or self._filled & {STEPS, COLLECTIVES, WINDOWS}:
            parts.append(RANK)
        missing = {
            trace: {part for part in parts if not self._has(trace, part)}
            for trace in traces
            if trace not in self.problems
        }
        chosen = [trace for trace, those in missing.items() if those]
        if not chosen:
            return
        wanted = tuple(part for part in parts if any(part in those for those in missing.values()))
        outcome = analyse_each(chosen, parts=wanted, compare=False, into=self._folder)
        self.problems |= outcome.problems
        said = [f"{trace}: {lacks}" for trace, lacks in outcome.truncated.items()]
        self.words += [words for words in said if words not in self.words]
        self._written |= {(trace, part) for trace in chosen for part in wanted}

    def _has(self, trace: Path, part: str) -> bool:
        if (trace, part) in self._written:
            return True
        folder = folder_of(trace)
        if part == RANK:
            files = [parquet.parquet_file(folder, name) for name in parquet.RANK_TABLES]
            return all(_is_current(trace, file) for file in files)
        return part == view_part(EVENTS) and _is_current(trace, view_file(folder, EVENTS))

    def _folder_of(self, trace: Path, part: str) -> Path:
        """Return the folder with a part of a trace's results; the temporary one if it is there."""
        return folder_of(trace, self._folder if (trace, part) in self._written else None)

    def _rank_files(self, traces: Sequence[Path], table: str) -> list[Path]:
        return [parquet.parquet_file(self._folder_of(trace, RANK), table) for trace in traces]

    def _ranks(self, traces: Sequence[Path]) -> Ranks:
        return Ranks({name: self._rank_files(traces, name) for name in parquet.RANK_TABLES})

    def _with(self, views: frozenset[str]) -> DuckDBPyConnection:
        """Return a database that has these views; others in it are empty.

        Raises:
            CaptureError: A trace that could be read before cannot be read any more.
        """
        if self._database is None or not views <= self._filled:
            known, self._filled = set(self.problems), self._filled | views
            self.write([trace for traces in self._windows.values() for trace in traces])
            if new := self.problems.keys() - known:
                raise CaptureError(
                    "\n".join(with_paths({path: self.problems[path] for path in new}))
                )
            self._database = self._filled_database()
        return self._database

    def _filled_database(self) -> DuckDBPyConnection:
        database = parquet.connection()
        database.execute(f"SET threads = {len(os.sched_getaffinity(0))}")
        for name, view in VIEWS.items():
            database.execute(f"CREATE TABLE {name} ({view.declared})")
        needed = self._filled | ({STEPS} if WINDOWS in self._filled else set())
        for window, traces in self._windows.items():
            for name in needed - {WINDOWS}:
                self._fill(database, name, window, traces)
        if WINDOWS in self._filled:
            rows = ", ".join(["(?, ?)"] * len(self._places))
            given = [value for both in self._places.items() for value in both]
            with_places = f"WITH places (window_name, place) AS (VALUES {rows})"
            database.execute(f"{with_places} {_WINDOWS}", given)
        ((used,),) = database.execute(
            "SELECT sum(memory_usage_bytes) FROM duckdb_memory()"
        ).fetchall()
        database.execute(f"SET memory_limit = '{used // 1_000_000 + STATEMENT_MB}MB'")
        database.execute(f"SET max_temp_directory_size = '{STATEMENT_MB}MB'")
        for statement in _LOCKED:
            database.execute(statement)
        return database

    def _fill(
        self, database: DuckDBPyConnection, view: str, window: str, traces: Sequence[Path]
    ) -> None:
        """Add the rows of a window to a view.

        Raises:
            CaptureError: A table cannot be read.
        """
        import duckdb

        chosen, late = "SELECT *", ""
        if view in _RANK_TABLES:
            files = self._rank_files(traces, _RANK_TABLES[view])
            chosen = _OF_STEPS if view == STEPS else _OF_COLLECTIVES
        else:
            files = [view_file(self._folder_of(trace, view_part(view)), view) for trace in traces]
        if view == COLLECTIVES:
            late, ranks = "LEFT JOIN lateness USING (rank, id)", self._ranks(traces)
            database.register("lateness", ranks.lateness())
            if unmatched := ranks.unmatched():
                self._unmatched[window] = unmatched
        try:
            database.execute(
                f"INSERT INTO {view} BY NAME FROM ({chosen} FROM read_parquet($files) {late}) "
                f"SELECT *, $window AS window_name, {_TIMES}",
                {"files": patterns(checked_names(files)), "window": window},
            )
        except (duckdb.Error, OSError) as error:
            raise CaptureError(
                f"the tables of {window} cannot be read: {describe(error)}"
            ) from error


def load(
    path: Path | str,
    *later: Path | str,
    all_windows: bool = False,
    views: Collection[str] = (),
) -> Views:
    """Return the views of captures, for SQL.

    Args:
        path: A trace, a folder, or the record of a window.
        later: More of them; the last has the newest window.
        all_windows: Whether to read all windows below a folder; by default the newest one.
        views: The views that statements will name, to read each trace only once; others are
            computed when a statement names them.

    Raises:
        CaptureError: There is no trace that can be read, or a path is given twice.
    """
    found = Views(views)
    for place, given in enumerate(map(Path, (path, *later))):
        path = given.resolve() if given.is_symlink() else given  # the caller named it
        before, alone = len(found), not later
        if all_windows:
            windows = _all_windows(path, alone=alone)
            found.write([trace for traces in windows.values() for trace in traces])
            for name, traces in windows.items():
                found.add(name, traces, place)
        else:
            _add_newest(found, path, place, alone=alone)
        if len(found) == before:
            raise CaptureError("\n".join(found.problems.values()))
    return found


def _add_newest(found: Views, path: Path, place: int, *, alone: bool) -> None:
    """Add the newest window below a path that can be read."""
    path = newest_window(path)[0]
    newest_first = sorted(captured_below(path), key=lambda trace: -trace.stat().st_mtime)
    for newest in newest_first:
        traces = [t for t in window_below(path, newest) if t not in found.problems]
        name = _name(window_folder(path, traces), path, alone=alone) if traces else ""
        if newest in traces and found.add(name, traces, place):
            found.words += window_words(traces) if path != newest else []
            break


def _all_windows(path: Path, *, alone: bool) -> dict[str, list[Path]]:
    """Return the traces of each window below a path, by the name of the window."""
    found: dict[str, list[Path]] = {}
    for trace in captured_below(path):
        found.setdefault(_name(trace.parent, path, alone=alone), []).append(trace)
    return found


def _name(folder: Path, path: Path, *, alone: bool) -> str:
    """Return the name of a window: its folder below a path, or the name of its folder.

    If several paths are given, it is that of the trace, or of the folder with the path.
    """
    if not alone:
        return str(path if path.is_file() and path.name != WINDOW_RECORD else folder)
    inside = folder != path and folder.is_relative_to(path)
    return str(folder.relative_to(path)) if inside else folder.absolute().name


def named_views(sql: str) -> frozenset[str]:
    """Return the views that a statement may read: those whose names are words of it."""
    return frozenset(name for name in VIEWS if re.search(rf"\b{name}\b", sql, re.IGNORECASE))


def _check_is_one(database: DuckDBPyConnection, sql: str) -> None:
    """Raise if a text has several statements with rows, of which only the last would be printed.

    Raises:
        QueryError: It has, or it is no SQL.
    """
    from duckdb import ExpectedResultType

    with _plain_errors(sql):
        found = database.extract_statements(sql)
    rows = [one for one in found if ExpectedResultType.QUERY_RESULT in one.expected_result_type]
    if len(rows) > 1:
        raise QueryError("more than one statement is given; give one")


def _is_current(trace: Path, file: Path) -> bool:
    """Return whether a table of this version is there, and is not older than its trace."""
    import duckdb

    with contextlib.suppress(OSError, duckdb.Error):
        if file.stat().st_mtime < trace.stat().st_mtime:
            return False
        with parquet.connection() as database:
            columns = database.read_parquet(patterns(checked_names([file]))).columns
        return _NEWEST_COLUMNS.get(file.stem, "rank") in columns
    return False


@contextlib.contextmanager
def _plain_errors(sql: str) -> Iterator[None]:
    """Raise DuckDB's errors about a statement as :class:`QueryError`.

    The message has the place, and the right names where one is misspelled.
    """
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        raise QueryError(plain_message(str(error), sql)) from error


def plain_message(text: str, sql: str) -> str:
    """Return DuckDB's message about a statement, with the right names where one is misspelled.

    Args:
        text: The message.
        sql: The statement.
    """
    said, line, where = text.partition("\n\nLINE ")
    kind, colon, rest = said.partition(" Error: ")
    if _NO_VIEW.search(said):
        hint = f"the views are {_listed(VIEWS)}"
    elif _NO_COLUMN.search(said):
        hint = "\n".join(
            f"the columns of {name} are {_listed(column.name for column in VIEWS[name].columns)}"
            for name in VIEWS
            if name in named_views(sql)
        )
    else:
        hint = ""
    rest = _CANDIDATES.sub("", _GUESSES.sub("", rest) if hint else rest)
    message = f"the SQL is wrong: {rest if colon else kind}".rstrip()
    return "\n".join(filter(None, (message, f"{line}{where}".strip("\n"), hint)))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)

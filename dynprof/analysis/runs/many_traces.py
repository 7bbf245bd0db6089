"""Analyses many traces in parallel, also if some are broken, and compares their ranks."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.rank_comparison.comparison import Ranks
from dynprof.analysis.rank_comparison.parquet import RANK_TABLES, parquet_file
from dynprof.analysis.reading.trace import Partner
from dynprof.analysis.runs.executors import Workers, closing
from dynprof.analysis.runs.executors import processes as processes_here
from dynprof.analysis.runs.one_trace import (
    FILES,
    MEMORY,
    OPERATORS,
    PARTS,
    PATH,
    RANK,
    VIEWS,
    export_types,
    folder_of,
    write_analysis,
)
from dynprof.analysis.runs.recorded_window import requested_ranks
from dynprof.analysis.runs.remote_files import workspace_of
from dynprof.analysis.vendor_files.analysis_database import write_ranks_database
from dynprof.analysis.vendor_files.json_files import FOLDER
from dynprof.analysis.vendor_files.left_out import left_out
from dynprof.analysis.vendor_files.tables import write_tables
from dynprof.errors import DynprofError, describe, why_not_written

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from contextlib import AbstractContextManager
    from pathlib import Path

    from dynprof.analysis.runs.remote_files import Workspace

SMALL = 2 << 20
"""A process takes as long to start as to analyse this many bytes of unpacked trace."""
LARGE = 30 << 20
"""Uncompressed bytes of a trace from which a second process is worth its start."""
_PACKED = 12
"""About the ratio of uncompressed to compressed bytes of a trace."""
_FIRST_PARTS = ((VIEWS,), (PATH,))
"""The first parts of each of two processes that share a trace."""
_SHARED_PARTS = (OPERATORS, MEMORY, FILES, RANK)
"""The parts that either process takes after its first ones, the longest first."""


@dataclass
class Outcome:
    """The results of several traces.

    Attributes:
        made: The files that were written.
        problems: The reason why a trace could not be analysed, by its path.
        truncated: What a trace lacks that ends too early, by its path; the rest was analysed.
        left_out: The traces that do not have a file, by the file and the reason.
        verdicts: Sentences about the ranks of a window, by its folder.
    """

    made: list[Path] = field(default_factory=list)
    problems: dict[Path, str] = field(default_factory=dict)
    truncated: dict[Path, str] = field(default_factory=dict)
    left_out: dict[tuple[str, str], list[Path]] = field(default_factory=dict)
    verdicts: dict[Path, list[str]] = field(default_factory=dict)
    _analysed: dict[Path, list[Path]] = field(default_factory=dict)
    _databases: set[Path] = field(default_factory=set)

    def note(self, found: _Found) -> None:
        """Add the results of one trace."""
        self.made += found.made
        if found.truncated:
            self.truncated[found.trace] = found.truncated
        if found.problem:
            self.problems[found.trace] = found.problem
        for reason in found.left_out.items():
            self.left_out.setdefault(reason, []).append(found.trace)
        if found.ranked:
            self._analysed.setdefault(found.trace.parent, []).append(found.trace)
        if found.database:
            self._databases.add(found.trace.parent)

    def compare_ranks(self) -> None:
        """Write the tables and verdicts of each folder that has several ranks.

        If that fails, the folder is added to the problems.
        """
        for folder, traces in self._analysed.items():
            if len(traces) > 1:
                try:
                    self._compare(folder, traces)
                except OSError as error:
                    self.problems[folder] = why_not_written(error)
                except DynprofError as error:
                    self.problems[folder] = describe(error)

    def _compare(self, folder: Path, traces: list[Path]) -> None:
        with workspace_of(folder) as place:
            ranks = read_ranks(traces, place)
            if len(ranks) > 1:
                made = [*write_tables(ranks.tables(), place.base / FOLDER)]
                if folder in self._databases:
                    made += write_ranks_database(ranks.query, place.base / FOLDER)
                self.made += map(place.upload, made)
                self.verdicts[folder] = ranks.words()


def read_ranks(traces: Sequence[Path], place: Workspace, into: Path | None = None) -> Ranks:
    """Return the ranks of the traces of a workspace, from the results in :func:`folder_of`."""
    traces = oldest_first(traces)
    return Ranks(
        {
            table: [place.fetch(parquet_file(folder_of(trace, into), table)) for trace in traces]
            for table in RANK_TABLES
        },
        requested_ranks(traces, place),
    )


def oldest_first(traces: Sequence[Path]) -> list[Path]:
    """Return traces by the time of their last change."""
    return sorted(traces, key=lambda trace: (trace.stat().st_mtime, str(trace)))


@dataclass
class _Found:
    """The results of one trace, as another process returns them."""

    trace: Path
    made: list[Path] = field(default_factory=list)
    truncated: str = ""
    problem: str = ""
    ranked: bool = False
    database: bool = False
    left_out: dict[str, str] = field(default_factory=dict)

    def add(self, other: _Found) -> None:
        """Add the results of another process for the same trace."""
        self.made += other.made
        self.truncated = self.truncated or other.truncated
        self.problem = other.problem or self.problem
        self.ranked |= other.ranked
        self.database |= other.database
        self.left_out |= other.left_out


def analyse_each(
    traces: Sequence[Path],
    types: Collection[str] | None = None,
    *,
    processes: int | None = None,
    executor: AbstractContextManager[Executor] | None = None,
    parts: tuple[str, ...] = PARTS,
    compare: bool = True,
    into: Path | None = None,
    on_end: Callable[[Path], None] = lambda _: None,
) -> Outcome:
    """Write all results of each trace.

    Args:
        traces: The traces.
        types: The formats of tables; by default those that the config of each trace requests.
        processes: The most processes to use; by default one for each CPU, and for every
            two MB of unpacked traces.
        executor: An executor to use instead of processes of this machine.
        parts: The parts of the work to do.
        compare: Whether to compare the ranks of each folder.
        into: A folder of this machine for the results; by default next to each trace.
        on_end: Called with each trace that is done.
    """
    outcome = Outcome()
    most = processes or _useful_processes(traces)
    share = executor is None and parts == PARTS and 2 * len(traces) <= most
    with executor or processes_here(min(most, len(traces)), traces) as pool:
        pending = {
            pool.submit(_analyse_in_two_processes, trace, types)
            if share and _is_large(trace)
            else pool.submit(_analyse, trace, parts, types, into=into): trace
            for trace in traces
        }
        for done in as_completed(pending):
            outcome.note(_result(done, pending[done]))
            on_end(pending[done])
    if compare:
        outcome.compare_ranks()
    return outcome


def _useful_processes(traces: Sequence[Path]) -> int:
    """Return the number of processes that are worth their start, on this machine."""
    worth = sum(map(_unpacked_size, traces)) // SMALL
    return max(1, min(worth, os.cpu_count() or 1))


def _is_large(trace: Path) -> bool:
    """Return whether a second process is worth its start."""
    return _unpacked_size(trace) > LARGE


def _unpacked_size(trace: Path) -> int:
    """Return the approximate bytes of a trace; 0 for one that is gone."""
    with contextlib.suppress(OSError):
        return trace.stat().st_size * (_PACKED if trace.suffix == ".gz" else 1)
    return 0


def _analyse_in_two_processes(trace: Path, types: Collection[str] | None) -> _Found:
    """Analyse a trace together with a second process, which this function starts."""
    here, there = multiprocessing.Pipe()
    with (
        _part_queue(_SHARED_PARTS) as offer,
        closing(Workers(1, inherited=there, shared=(offer,), places=(trace,))) as second,
    ):
        pending = second.submit(_analyse_in_second_process, trace, types, there.fileno(), offer)
        with here:
            parts = _next_parts(_FIRST_PARTS[0], offer)
            found = _analyse(trace, parts, types, Partner(0, here))
        found.add(_result(pending, trace))
    return found


def _analyse_in_second_process(
    trace: Path, types: Collection[str] | None, end: int, offer: int
) -> _Found:
    """Do the part of the second process, which inherits the connection to the first one."""
    with Connection(end) as here:
        partner = Partner(1, here)
        found = _analyse(trace, _next_parts(_FIRST_PARTS[1], offer), types, partner)
        partner.finish()
    return found


@contextlib.contextmanager
def _part_queue(parts: Sequence[str]) -> Iterator[int]:
    """Yield a pipe with a byte for each part: only the process that reads it does the part."""
    reading, writing = os.pipe()
    try:
        os.write(writing, bytes(PARTS.index(part) for part in parts))
        os.close(writing)
        yield reading
    finally:
        os.close(reading)


def _next_parts(first: Sequence[str], offer: int) -> Iterator[str]:
    """Yield the first parts of a process, then those that it takes from the queue."""
    yield from first
    while part := os.read(offer, 1):
        yield PARTS[part[0]]


def _result(done: Future[_Found], trace: Path) -> _Found:
    """Return the results of a trace, also if its process died."""
    error = done.exception()
    if error is None:
        return done.result()
    return _Found(trace, problem=f"the process that analysed it ended: {error}")


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Turn garbage collection off: millions of small objects have next to no garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _analyse(
    trace: Path,
    parts: Iterable[str],
    types: Collection[str] | None,
    partner: Partner | None = None,
    into: Path | None = None,
) -> _Found:
    found = _Found(trace)
    try:
        with _no_collections(), workspace_of(trace.parent) as place:
            measured = MeasuredTrace(place.fetch_capture(trace), partner)
            found.truncated = " ".join(measured.truncation.sentences())
            for part in parts:
                for path in write_analysis(measured, types, (part,), into):
                    found.made.append(path if into else place.upload(path))
                found.ranked |= part == RANK
                if part == VIEWS:
                    found.left_out = left_out(measured)
            found.database = "db" in (export_types(measured) if types is None else types)
    except OSError as error:
        found.problem = why_not_written(error)
    except DynprofError as error:
        found.problem = describe(error)
    return found

"""Reports on the newest window below a path: on its only trace, or on the slowest of its ranks."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.analysis.measures.difference import against_baseline
from dynprof.analysis.measures.measured_trace import MeasuredTrace
from dynprof.analysis.rank_comparison.parquet import RANK_TABLES, parquet_file
from dynprof.analysis.report.contents import (
    REPORT,
    verdict,
    worst_findings,
    write_report,
)
from dynprof.analysis.runs.many_traces import analyse_each, oldest_first, read_ranks
from dynprof.analysis.runs.one_trace import RANK, folder_of
from dynprof.analysis.runs.recorded_window import (
    newest_measured,
    window_below,
    window_folder,
    window_named,
    window_words,
)
from dynprof.analysis.runs.remote_files import Workspace
from dynprof.analysis.vendor_files.json_files import FOLDER, output_file
from dynprof.errors import CaptureError
from dynprof.runtime.plural import sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynprof.analysis.findings.finding import Finding
    from dynprof.analysis.rank_comparison.comparison import Ranks


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        path: Its path.
        window: Which window it is about, and when it was recorded; empty if unknown.
        words: The verdict, in sentences.
        findings: The worst findings, with their numbers.
        problems: The reason why a rank could not be read, by its trace.
    """

    path: Path
    window: str
    words: list[str]
    findings: list[str]
    problems: dict[Path, str] = field(default_factory=dict)


def report_on(path: Path, output: Path | str | None = None) -> Report:
    """Write a report.

    Args:
        path: A trace, or a folder, whose newest window is used.
        output: The file or folder to write to; by default ``analysis`` next to the trace.

    Raises:
        CaptureError: There is no trace that can be read.
        OSError: The report cannot be written.
    """
    measured, problems = newest_measured(path)
    traces = [t for t in window_below(path, measured.path) if t not in problems]
    if len(traces) == 1:
        words = [] if path == measured.path else window_words(traces)
        return _on_one(measured, output, problems, words)
    made = _on_ranks(window_folder(path, traces), traces, output)
    return replace(made, problems={**problems, **made.problems})


def _on_one(
    measured: MeasuredTrace, output: Path | str | None, problems: dict[Path, str], words: list[str]
) -> Report:
    target = output_file(output, folder_of(measured.path), REPORT)
    usual = against_baseline(measured)
    said = [*map(sentence, words), *verdict(measured, usual)]
    found = worst_findings(measured)
    written = write_report(measured, target, usual=usual, found=found)
    return Report(written, _window(measured), said, _numbered(found), problems)


def _numbered(found: list[Finding]) -> list[str]:
    return [f"{place}. {one}" for place, one in enumerate(found, 1)]


def _window(measured: MeasuredTrace) -> str:
    named = window_named(measured.manifest)
    return sentence(named) if named else ""


def _on_ranks(folder: Path, traces: list[Path], output: Path | str | None) -> Report:
    with compared(traces, folder, elsewhere=output is not None) as (ranks, ready, problems):
        if len(ranks) < 2:
            return _on_one(MeasuredTrace(ready[-1]), output, problems, window_words(ready))
        measured = MeasuredTrace(ready[ranks.file_index(ranks.slowest())])
        target = output_file(output, folder / FOLDER, REPORT)
        about = f"what follows is about {ranks.slowest_and_why()}"
        of_ranks = map(sentence, (*ranks.words(), *window_words(ready), about))
        usual = against_baseline(measured)
        words = [*of_ranks, *verdict(measured, usual)]
        found = worst_findings(measured, ranks)
        written = write_report(measured, target, ranks, usual, found)
        return Report(written, _window(measured), words, _numbered(found), problems)


@contextlib.contextmanager
def compared(
    traces: Sequence[Path], folder: Path, *, elsewhere: bool
) -> Iterator[tuple[Ranks, list[Path], dict[Path, str]]]:
    """Compare ranks, after writing the tables for it that are missing.

    Args:
        traces: The traces of one window.
        folder: The folder of the newest one.
        elsewhere: Use a temporary folder if this user cannot write next to the traces.

    Yields:
        The ranks, the traces by :meth:`Ranks.file_index`, and why others cannot be read.

    Raises:
        CaptureError: None of the traces can be read.
        OSError: This user cannot write next to any of them.
    """
    missing = [trace for trace in traces if not _has_rank_tables(trace)]
    with contextlib.ExitStack() as stack:
        into = None
        if elsewhere and not all(map(_is_writable, missing)):
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="dynprof-ranks-"))
            into, missing = Path(made), list(traces)
        outcome = analyse_each(missing, parts=(RANK,), compare=False, into=into)
        ready = oldest_first([trace for trace in traces if trace not in outcome.problems])
        if not ready and into is None and not any(map(_is_writable, missing)):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder / FOLDER))
        if not ready:
            raise CaptureError(next(iter(outcome.problems.values())))
        yield read_ranks(ready, Workspace(folder), into), ready, outcome.problems


def _is_writable(trace: Path) -> bool:
    """Return whether this user may write the results of a trace next to it."""
    places = parquet_file(folder_of(trace), RANK_TABLES[0]).parents
    return os.access(next(place for place in places if place.exists()), os.W_OK | os.X_OK)


def _has_rank_tables(trace: Path) -> bool:
    """Return whether a trace has its tables for the comparison, and they are not older."""
    tables = [parquet_file(folder_of(trace), name) for name in RANK_TABLES]
    made = [table.stat().st_mtime for table in tables if table.is_file()]
    return len(made) == len(tables) and min(made) >= trace.stat().st_mtime

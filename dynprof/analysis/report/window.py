"""A report on the newest window below a path: on its one trace, or on the slowest of its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.capture import Capture
from dynprof.analysis.captures import FOLDER, RANK, folder_of, newest_in, traces_in
from dynprof.analysis.many import analyse_each, ranks_of
from dynprof.analysis.parquet import RANK_TABLES, parquet_file
from dynprof.analysis.places import Place
from dynprof.analysis.report.contents import verdict
from dynprof.analysis.report.page import REPORT, write_report
from dynprof.errors import CaptureError
from dynprof.layout import make_dir

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        path: Where it lies.
        words: The verdict, and what was found.
        problems: Why a rank could not be read, by its trace.
    """

    path: Path
    words: list[str]
    problems: dict[Path, str] = field(default_factory=dict)


def report_on(path: Path, output: Path | None = None) -> Report:
    """Write a report.

    Args:
        path: A trace, or a folder: its newest window is taken.
        output: Where to; left out, into ``analysis`` beside the trace.

    Raises:
        CaptureError: There is no trace, or none that can be read.
        OSError: It cannot be written.
    """
    newest = newest_in(path)
    traces = [trace for trace in traces_in(path) if trace.parent == newest.parent]
    if len(traces) == 1:
        return _on_one(newest, output)
    return _on_ranks(newest.parent, traces, output)


def _on_one(trace: Path, output: Path | None) -> Report:
    capture = Capture(trace)
    target = output or folder_of(trace) / REPORT
    make_dir(target.parent)
    return Report(write_report(capture, target), verdict(capture))


def _on_ranks(folder: Path, traces: list[Path], output: Path | None) -> Report:
    outcome = analyse_each([t for t in traces if not _compared(t)], parts=(RANK,), compare=False)
    ready = [trace for trace in traces if trace not in outcome.problems]
    if not ready:
        raise CaptureError(next(iter(outcome.problems.values())))
    ranks = ranks_of(ready, Place(folder))
    if len(ranks) < 2:
        return _on_one(ready[-1], output)
    capture = Capture(ready[ranks.place_of(ranks.slowest())])
    target = output or folder / FOLDER / REPORT
    make_dir(target.parent)
    words = [*map(str, ranks.stragglers()), *verdict(capture)]
    return Report(write_report(capture, target, ranks), words, outcome.problems)


def _compared(trace: Path) -> bool:
    """Return whether what a rank is compared by was made from the trace as it is."""
    tables = [parquet_file(folder_of(trace), name) for name in RANK_TABLES]
    made = [table.stat().st_mtime for table in tables if table.is_file()]
    return len(made) == len(tables) and min(made) >= trace.stat().st_mtime

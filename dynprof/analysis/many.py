"""Several traces at once: a broken one does not keep the others, and ranks are compared."""

from __future__ import annotations

import os
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.capture import Capture, manifest_path
from dynprof.analysis.captures import FOLDER, PARTS, analyse_capture, folder_of
from dynprof.analysis.executors import processes as processes_here
from dynprof.analysis.parquet import RANK_TABLES, parquet_file
from dynprof.analysis.places import place_of
from dynprof.analysis.ranks import Ranks
from dynprof.analysis.tables import write_tables
from dynprof.errors import DynprofError, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Executor, Future
    from contextlib import AbstractContextManager
    from pathlib import Path


LARGE = 30 << 20
"""Bytes of a trace, uncompressed, from which on a second process is worth its start."""
_PACKED = 12
"""By how much a trace is smaller when it is packed, about."""


@dataclass
class Outcome:
    """What became of several traces.

    Attributes:
        made: The files that were written.
        problems: Why a trace could not be analysed, by its path.
        torn: Where and how a trace ends too early, by its path; it was analysed so far.
        verdicts: What is to be said of the ranks of a window, by its folder.
    """

    made: list[Path] = field(default_factory=list)
    problems: dict[Path, str] = field(default_factory=dict)
    torn: dict[Path, str] = field(default_factory=dict)
    verdicts: dict[Path, list[str]] = field(default_factory=dict)
    _analysed: dict[Path, dict[Path, int]] = field(default_factory=dict)

    def note(self, found: _Found) -> None:
        """Take what became of one trace."""
        self.made += found.made
        if found.torn:
            self.torn[found.trace] = found.torn
        if found.problem:
            self.problems[found.trace] = found.problem
        if found.rank is not None:
            self._analysed.setdefault(found.trace.parent, {})[found.trace] = found.rank

    def compare_ranks(self) -> None:
        """Write the tables of each folder that holds several ranks, and judge them.

        Raises:
            OSError: A table cannot be written.
        """
        for folder, traces in self._analysed.items():
            if len(set(traces.values())) < 2:
                continue
            with place_of(folder) as place:
                files = {
                    table: [place.fetch(parquet_file(folder_of(t), table)) for t in sorted(traces)]
                    for table in RANK_TABLES
                }
                ranks = Ranks(files)
                self.made += map(place.deliver, write_tables(ranks.tables(), place.base / FOLDER))
                self.verdicts[folder] = [str(one) for one in ranks.stragglers()]


@dataclass
class _Found:
    """What became of one trace, on its way from another process."""

    trace: Path
    made: list[Path] = field(default_factory=list)
    torn: str = ""
    problem: str = ""
    rank: int | None = None


def analyse_each(
    traces: Sequence[Path],
    types: Collection[str] | None = None,
    *,
    processes: int | None = None,
    executor: AbstractContextManager[Executor] | None = None,
    on_end: Callable[[Path], None] = lambda _: None,
) -> Outcome:
    """Make what can be made from each trace.

    Args:
        traces: The traces.
        types: The forms of tables; left out, those that each one's config asks for.
        processes: How many processes at most; left out, one for each processor.
        executor: What works instead of processes of this machine.
        on_end: Called when one is done.
    """
    outcome = Outcome()
    most = processes or os.cpu_count() or 1
    work = _shared_out(traces, 1 if executor else most)
    with executor or processes_here(min(most, len(work))) as pool:
        pending = {pool.submit(_analyse, *task, types): task[0] for task in work}
        for done in as_completed(pending):
            outcome.note(_result(done, pending[done]))
            on_end(pending[done])
    outcome.compare_ranks()
    return outcome


def _shared_out(traces: Sequence[Path], processes: int) -> list[tuple[Path, tuple[str, ...]]]:
    """Return what each task does: with fewer traces than processes, two share a large one."""
    if len(traces) >= processes:
        return [(trace, PARTS) for trace in traces]
    found: list[tuple[Path, tuple[str, ...]]] = []
    for trace in traces:
        size = trace.stat().st_size * (_PACKED if trace.suffix == ".gz" else 1)
        found += [(trace, (part,)) for part in PARTS] if size > LARGE else [(trace, PARTS)]
    return found


def _result(done: Future[_Found], trace: Path) -> _Found:
    """Return what became of a trace, also where the process that had it died."""
    error = done.exception()
    if error is None:
        return done.result()
    return _Found(trace, problem=f"the process that analysed it ended: {error}")


def _analyse(trace: Path, parts: Collection[str], types: Collection[str] | None) -> _Found:
    found = _Found(trace)
    try:
        with place_of(trace.parent) as place:
            if manifest := manifest_path(trace):
                place.fetch(manifest)
            capture = Capture(place.fetch(trace))
            found.torn = capture.trace.torn
            for path in analyse_capture(capture, types, parts):
                found.made.append(place.deliver(path))
            found.rank = capture.rank if PARTS[1] in parts else None
    except (DynprofError, OSError) as error:
        found.problem = describe(error)
    return found

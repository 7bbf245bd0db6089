"""Several traces at once: one process each, and a broken one does not keep the others."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.capture import Capture
from dynprof.analysis.captures import FOLDER, PARTS, analyse_capture
from dynprof.analysis.ranks import RankSteps, rank_steps, rank_table, stragglers
from dynprof.analysis.tables import write_tables
from dynprof.errors import DynprofError, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
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
    _ranks: dict[Path, list[RankSteps]] = field(default_factory=dict)

    def note(self, found: _Found) -> None:
        """Take what became of one trace."""
        self.made += found.made
        if found.torn:
            self.torn[found.trace] = found.torn
        if found.problem:
            self.problems[found.trace] = found.problem
        if found.rank:
            self._ranks.setdefault(found.trace.parent, []).append(found.rank)

    def compare_ranks(self) -> None:
        """Write the table of each folder that holds several ranks, and judge them.

        Raises:
            OSError: A table cannot be written.
        """
        for folder, ranks in self._ranks.items():
            if len({rank.rank for rank in ranks}) < 2:
                continue
            self.made += write_tables(rank_table(ranks), folder / FOLDER)
            self.verdicts[folder] = [str(one) for one in stragglers(ranks)]


@dataclass
class _Found:
    """What became of one trace, on its way from another process."""

    trace: Path
    made: list[Path] = field(default_factory=list)
    torn: str = ""
    problem: str = ""
    rank: RankSteps | None = None


def analyse_each(
    traces: Sequence[Path],
    types: Collection[str] | None = None,
    *,
    processes: int | None = None,
    on_end: Callable[[Path], None] = lambda _: None,
) -> Outcome:
    """Make what can be made from each trace.

    Args:
        traces: The traces.
        types: The forms of tables; left out, those that each one's config asks for.
        processes: How many processes at most; left out, one for each processor.
        on_end: Called when one is done.
    """
    outcome = Outcome()
    most = processes or os.cpu_count() or 1
    work = _shared_out(traces, most)
    count = min(most, len(work))
    if count <= 1:
        for trace, parts in work:
            outcome.note(_analyse(trace, types, parts))
            on_end(trace)
        outcome.compare_ranks()
        return outcome
    context = multiprocessing.get_context("spawn")  # a fork would copy the caller's threads' locks
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        pending = [pool.submit(_analyse, trace, types, parts) for trace, parts in work]
        for done in as_completed(pending):
            found = done.result()
            outcome.note(found)
            on_end(found.trace)
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


def _analyse(trace: Path, types: Collection[str] | None, parts: Collection[str]) -> _Found:
    found = _Found(trace)
    try:
        capture = Capture(trace)
        found.torn = capture.trace.torn
        for path in analyse_capture(capture, types, parts):
            found.made.append(path)
        found.rank = rank_steps(capture) if PARTS[0] in parts else None
    except (DynprofError, OSError) as error:
        found.problem = describe(error)
    return found

"""Several traces at once: one process each, and a broken one does not keep the others."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynprof.analysis.capture import Capture
from dynprof.analysis.captures import analyse_capture
from dynprof.errors import DynprofError, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path


@dataclass
class Outcome:
    """What became of several traces.

    Attributes:
        made: The files that were written.
        problems: Why a trace could not be analysed, by its path.
        torn: Where and how a trace ends too early, by its path; it was analysed so far.
    """

    made: list[Path] = field(default_factory=list)
    problems: dict[Path, str] = field(default_factory=dict)
    torn: dict[Path, str] = field(default_factory=dict)


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
    count = min(processes or os.cpu_count() or 1, len(traces))
    if count <= 1:
        for trace in traces:
            _note(outcome, *_analyse(trace, types))
            on_end(trace)
        return outcome
    context = multiprocessing.get_context("spawn")  # a fork would copy the caller's threads' locks
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        pending = [pool.submit(_analyse, trace, types) for trace in traces]
        for done in as_completed(pending):
            found = done.result()
            _note(outcome, *found)
            on_end(found[0])
    return outcome


def _note(outcome: Outcome, trace: Path, made: list[Path], torn: str, problem: str) -> None:
    outcome.made += made
    if torn:
        outcome.torn[trace] = torn
    if problem:
        outcome.problems[trace] = problem


def _analyse(trace: Path, types: Collection[str] | None) -> tuple[Path, list[Path], str, str]:
    made: list[Path] = []
    torn = ""
    try:
        capture = Capture(trace)
        torn = capture.trace.torn
        for path in analyse_capture(capture, types):
            made.append(path)  # noqa: PERF402 - what was made before a failure counts
    except (DynprofError, OSError) as error:
        return trace, made, torn, describe(error)
    return trace, made, torn, ""

"""The offline entry of analysis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dynprof.errors import CaptureError
from dynprof.plural import counted
from dynprof.process.warnings_to_script import warn_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynprof.profiler.enums import ExportType


def analyse(
    profiler_path: str | os.PathLike[str],
    max_process_number: int | None = None,
    export_type: ExportType | str | Sequence[ExportType | str] | None = None,
) -> list[Path]:
    """Make tables, folded stacks and memory timelines from captures that were saved.

    Several captures are analysed by as many processes, started afresh; they do not import the
    script.

    Args:
        profiler_path: A trace, or a folder with captures in it, at any depth.
        max_process_number: How many processes at most; left out, one for each processor.
        export_type: The form of the tables: ``text``, ``db`` or a list of both; left out, what
            the config of each capture asks for.

    Returns:
        The files that were written, in ``analysis`` beside each trace.

    Raises:
        CaptureError: There is no capture, or some cannot be read; the others were analysed.
    """
    from dynprof.analysis.runs.many_traces import analyse_each
    from dynprof.analysis.runs.one_trace import traces_in

    outcome = analyse_each(
        traces_in(Path(profiler_path)), _types(export_type), processes=_count(max_process_number)
    )
    for path, torn in outcome.torn.items():
        warn_script(f"{path} is not whole: {torn}")
    if outcome.problems:
        raise CaptureError("; ".join(f"{path}: {why}" for path, why in outcome.problems.items()))
    return outcome.made


def _count(asked: object) -> int | None:
    most = os.cpu_count() or 1
    if asked is None:
        return None
    if not isinstance(asked, int) or isinstance(asked, bool) or asked <= 0:
        warn_script(f"max_process_number={asked!r} is no positive number; {most} is taken")
        return None
    if asked > most:
        there = counted(most, "processor")
        warn_script(f"max_process_number={asked} is too many for {there}; {most} is taken")
    return min(asked, most)


def _types(asked: object) -> tuple[str, ...] | None:
    from dynprof.analysis.runs.one_trace import EXPORT_TYPES

    if asked is None:
        return None
    named = asked if isinstance(asked, (list, tuple, set)) else [asked]
    found = tuple(dict.fromkeys(getattr(kind, "value", kind) for kind in named))
    if not found or not set(found) <= set(EXPORT_TYPES):
        warn_script(
            f"export_type={asked!r} is none of {', '.join(EXPORT_TYPES)}; the config's is taken"
        )
        return None
    return tuple(map(str, found))
